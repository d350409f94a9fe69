"""What to do about a device that is full: which objects could be elsewhere, and which of them would be enough.

It reads the error and the contracts. It moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollplex.memory.arena import OutOfDeviceMemory
from rollplex.memory.contracts import CONTRACTS, Away, Contract


@dataclass(frozen=True, kw_only=True)
class Option:
    """One object that its contract allows to be elsewhere."""

    owner: str
    """Whose bytes."""
    nbytes: int
    """How many would leave the device."""
    away: Away
    """What would become of them."""
    residency: str
    """The contract in words."""
    enough: bool
    """Whether this alone would make room."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why an admission did not fit, and what would make it fit."""

    owner: str
    """What was being admitted."""
    nbytes: int
    """How large it is."""
    missing_bytes: int
    """How much too much it is."""
    owners: dict[str, int]
    """Who holds the device, the largest first."""
    options: tuple[Option, ...]
    """What could leave, the largest first."""

    @property
    def fewest(self) -> tuple[Option, ...] | None:
        """The fewest options that together make room, or None if all of them do not."""
        chosen, left = [], self.missing_bytes
        for option in self.options:
            if left <= 0:
                break
            chosen.append(option)
            left -= option.nbytes
        return tuple(chosen) if left <= 0 else None

    def __str__(self) -> str:
        lines = [f"{self.owner}: {_mib(self.nbytes)} to admit, {_mib(self.missing_bytes)} too much. Held:"]
        lines += [f"  {_mib(size):>16}  {owner}" for owner, size in self.owners.items()]
        if not self.options:
            return "\n".join([*lines, "None of it may be elsewhere now: a larger budget or a smaller batch is needed."])
        lines.append("May be elsewhere:")
        for o in self.options:
            lines.append(f"  {_mib(o.nbytes):>16}  {o.owner}: {o.away}{', enough by itself' if o.enough else ''}")
        if self.fewest is None:
            lines.append("All of that together is not enough: a larger budget or a smaller batch is needed.")
        elif len(self.fewest) > 1:
            lines.append(f"Enough together: {', '.join(option.owner for option in self.fewest)}.")
        return "\n".join(lines)


def explain(error: OutOfDeviceMemory) -> Explanation:
    """What the contracts offer against an error.

    >>> held = {"policy.optimizer": 6 << 20, "policy.boundary": 2 << 20}
    >>> print(explain(OutOfDeviceMemory(owner="engine.kv", nbytes=1 << 20, budget_bytes=8 << 20, owners=held)))
    engine.kv: 1.00 MiB to admit, 1.00 MiB too much. Held:
              6.00 MiB  policy.optimizer
              2.00 MiB  policy.boundary
    May be elsewhere:
              6.00 MiB  policy.optimizer: host, enough by itself
    """
    missing = sum(error.owners.values()) + error.nbytes - error.budget_bytes
    known = {c.owner: c for c in CONTRACTS}
    options = [
        Option(owner=owner, nbytes=size, away=away, residency=known[owner].residency, enough=size >= missing)
        for owner, size in error.owners.items()
        if owner in known and owner != error.owner
        for away in _choices(known[owner])[:1]
    ]
    options.sort(key=lambda option: -option.nbytes)
    return Explanation(
        owner=error.owner,
        nbytes=error.nbytes,
        missing_bytes=missing,
        owners=error.owners,
        options=tuple(options),
    )


def _choices(contract: Contract) -> tuple[Away, ...]:
    """What may become of an object that is still to be used; one that is freed after its use must have had it."""
    return tuple(away for away in contract.away if away != "freed")


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.2f} MiB"

"""What to do about a device that is full: which objects could be elsewhere, and which of them would be enough.

It reads the error and the contracts. It moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollplex.memory.arena import OutOfDeviceMemory
from rollplex.memory.contracts import OWNERS, STAGES, Away, Contract
from rollplex.memory.mebibytes import mebibytes

HOW: Mapping[str, str] = {
    "engine.kv": "Memory(release_rollout=True) frees it after decoding",
    "policy.boundary": "Run(..., memory=...) frees it after its suffix",
    "reference.boundary": "Run(..., memory=...) frees it after its suffix",
    "reference.weights": "Memory(page_reference=True) has them there only around their use",
    "policy.tape": 'Prefix(policy, tape="offload" or "recompute"); of what is in flight, smaller microbatch_tokens',
    "policy.optimizer": "Update(policy, chunk_bytes=...) brings it chunk by chunk",
}
"""Owner -> how it comes to be elsewhere here; what a contract allows and nothing here does is not offered."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One object that its contract allows to be elsewhere."""

    owner: str
    """Whose bytes."""
    nbytes: int
    """How many would leave the device, or need not come."""
    away: Away
    """What would become of them."""
    how: str
    """What brings it about."""
    residency: str
    """The contract in words."""
    enough: bool
    """Whether this alone would make room."""
    in_flight: bool
    """Whether it is what was being admitted, of which a few chunks or a layer must come all the same."""

    @property
    def verdict(self) -> str:
        """How far it helps, in words; empty where it is not enough."""
        if not self.enough:
            return ""
        return "perhaps enough by itself" if self.in_flight else "enough by itself"


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation:
    """Why an admission did not fit, and what would make it fit."""

    owner: str
    """What was being admitted."""
    nbytes: int
    """How large it is."""
    missing_bytes: int
    """How much too much it is."""
    budget_bytes: int
    """What the device may hold."""
    owners: Mapping[str, int]
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
        lines = [f"{self.owner}: {mebibytes(self.nbytes)} to admit, {mebibytes(self.missing_bytes)} too much. Held:"]
        lines += [f"  {mebibytes(size):>16}  {owner}" for owner, size in self.owners.items()]
        if not self.options:
            return "\n".join([*lines, "None of it may be elsewhere now: a larger budget or a smaller batch is needed."])
        lines.append("May be elsewhere:")
        for o in self.options:
            where = ", ".join(filter(None, (o.away, o.verdict)))
            lines.append(f"  {mebibytes(o.nbytes):>16}  {o.owner}: {where}; {o.how}")
        if self.fewest is None:
            lines.append("All of that together is not enough: a larger budget or a smaller batch is needed.")
        elif len(self.fewest) > 1:
            lines.append(f"Enough together: {', '.join(option.owner for option in self.fewest)}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Explanation({self.owner}: {mebibytes(self.missing_bytes)} too much, {len(self.options)} options)"

    def _repr_html_(self) -> str:
        from rollplex.views.explanation import explanation

        return explanation(self).text


def explain(error: OutOfDeviceMemory) -> Explanation:
    """What the contracts allow against an error, and how to have it.

    >>> held = {"policy.optimizer": 6 << 20, "policy.boundary": 2 << 20}
    >>> print(explain(OutOfDeviceMemory(owner="engine.kv", nbytes=1 << 20, budget_bytes=8 << 20, owners=held)))
    engine.kv: 1.00 MiB to admit, 1.00 MiB too much. Held:
              6.00 MiB  policy.optimizer
              2.00 MiB  policy.boundary
    May be elsewhere:
              6.00 MiB  policy.optimizer: host, enough by itself; Update(policy, chunk_bytes=...) brings it chunk by chunk
    """
    missing = sum(error.owners.values()) + error.nbytes - error.budget_bytes
    admitted = OWNERS.get(error.owner)
    sizes: dict[str, int] = {}
    for owner, size in error.owners.items():
        found = OWNERS.get(owner)
        if found is not None and found is not admitted:
            sizes[found.owner] = sizes.get(found.owner, 0) + size
    if admitted is not None and "whole" not in admitted.device.values():  # it need not come as a whole
        held = sum(size for owner, size in error.owners.items() if owner in admitted.owners)
        sizes[admitted.owner] = held + error.nbytes
    options = [
        _option(known, size, away, missing, in_flight=known is admitted)
        for owner, size in sizes.items()
        if owner in HOW and (known := OWNERS.get(owner)) and (away := _away(known, admitted))
    ]
    return Explanation(
        owner=error.owner,
        nbytes=error.nbytes,
        missing_bytes=missing,
        budget_bytes=error.budget_bytes,
        owners=error.owners,
        options=tuple(sorted(options, key=lambda option: -option.nbytes)),
    )


def _option(contract: Contract, nbytes: int, away: Away, missing: int, *, in_flight: bool) -> Option:
    return Option(
        owner=contract.owner,
        nbytes=nbytes,
        away=away,
        how=HOW[contract.owner],
        residency=contract.residency,
        enough=nbytes >= missing,
        in_flight=in_flight,
    )


def _away(contract: Contract, admitted: Contract | None) -> Away | None:
    """What may become of an object while another comes; one that is freed after its use must have had it."""
    overdue = admitted is not None and _last(contract) < _first(admitted)
    choices: list[Away] = [away for away in contract.away if away != "freed" or overdue]
    return choices[0] if choices else None


def _first(contract: Contract) -> int:
    return min(STAGES.index(stage) for stage in contract.device)


def _last(contract: Contract) -> int:
    return max(STAGES.index(stage) for stage in contract.device)

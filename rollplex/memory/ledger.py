"""Whose every byte of the device is: owners, what nobody owns, and the host's pool apart.

It compares what phases and values say they hold with what is allocated, so that memory which nobody accounts for has a
row of its own and is never lost in a rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollplex.memory.allocated import Allocated
from rollplex.memory.owners import Owners, shared

if TYPE_CHECKING:
    from rollplex.run import Run


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Bytes of one device by owner at one moment."""

    device: str
    """Which device, e.g. ``"cpu (2 cores)"``."""
    owners: Mapping[str, int]
    """Owner -> bytes on the device, the largest first; a storage that several share is the first one's."""
    shared: Mapping[str, tuple[str, ...]]
    """Who lies in bytes of others -> those others."""
    allocated: Allocated
    """What is in use on the device, whoever owns it."""
    budget_bytes: int | None
    """What an arena's owners may hold together, where there is one."""
    host: Mapping[str, int]
    """Owner -> bytes in the pool of host memory."""
    pool_bytes: int | None
    """Size of that pool, where there is one."""

    @property
    def owned_bytes(self) -> int:
        """Sum of the owners."""
        return sum(self.owners.values())

    @property
    def unattributed_bytes(self) -> int:
        """Allocated and nobody's: inputs, buffers, whatever a notebook still holds.

        Below zero, owners claim more than there is: bytes that a graph keeps and its boundary too, for example.
        """
        return self.allocated.nbytes - self.owned_bytes

    def document(self) -> dict[str, object]:
        """The ledger as plain values, for JSON."""
        return {
            "device": self.device,
            "owners_bytes": dict(self.owners),
            "shared": {name: list(others) for name, others in self.shared.items()},
            "unattributed_bytes": self.unattributed_bytes,
            "allocated_bytes": self.allocated.nbytes,
            "cached_bytes": self.allocated.cached_bytes,
            "process_bytes": self.allocated.process_bytes,
            "budget_bytes": self.budget_bytes,
            "host_owners_bytes": dict(self.host),
            "host_pool_bytes": self.pool_bytes,
        }

    def __str__(self) -> str:
        lines = [f"On {self.device}:", *(_line(name, num) for name, num in self.owners.items())]
        lines += [_line("unattributed", self.unattributed_bytes), _line("allocated", self.allocated.nbytes)]
        if self.budget_bytes is not None:
            lines.append(_line("budget", self.budget_bytes))
        if self.allocated.cached_bytes:
            lines.append(_line("cached by torch", self.allocated.cached_bytes))
        if self.allocated.process_bytes is not None:
            lines.append(_line("the whole process", self.allocated.process_bytes))
        lines += [f"{name} lies in {', '.join(others)}" for name, others in self.shared.items()]
        if self.pool_bytes is not None:
            lines += ["In host memory:", *(_line(name, num) for name, num in self.host.items())]
            lines.append(_line("free", self.pool_bytes - sum(self.host.values())))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Ledger({len(self.owners)} owners, {self.owned_bytes:,} of {self.allocated.nbytes:,} bytes owned)"

    def _repr_html_(self) -> str:
        from rollplex.views.ledger import ledger

        return ledger(self).text


def ledger(run: Run) -> Ledger:
    """Whose the device's bytes are, with the newest step's values; between steps or in the middle of one."""
    recorder = run.recorder
    found = Owners.of(run.phases, run.last, recorder.arena)
    pool = None if recorder.arena is None else recorder.arena.pool
    return Ledger(
        device=run.trace.device,
        owners=dict(sorted(found.device.items(), key=lambda item: -item[1])),
        shared=shared(run.phases),
        allocated=Allocated.on(recorder.device, recorder.arena),
        budget_bytes=run.trace.budget_bytes,
        host=found.host,
        pool_bytes=None if pool is None else pool.nbytes,
    )


def _line(name: str, num_bytes: int) -> str:
    return f"  {num_bytes / 2**20:12,.2f} MiB  {name}"

"""What is allocated on a device, whoever owns it: the figure that a ledger's owners are held against.

On CUDA torch's allocator counts. On a CPU nobody does, so every tensor that Python can reach is looked at. The system's
own figure for the whole process stands beside both. It knows no owners.
"""

# The management library of NVIDIA's driver is an extra: the file is type-checked without it too.
# pyright: reportMissingImports=false

from __future__ import annotations

import gc
import os
from collections.abc import Collection
from dataclasses import dataclass

import torch

from rollplex.memory.arena import Arena


@dataclass(frozen=True, kw_only=True)
class Allocated:
    """Bytes of one device that are in use."""

    tensors_bytes: int
    """Of tensors outside of arenas: as torch's allocator counts, or, on a CPU, the distinct storages of all tensors that
    Python can reach."""
    arena_bytes: int
    """Pages behind an arena, as its system counts them."""
    cached_bytes: int
    """What torch's allocator keeps for later; 0 on a CPU, where it keeps nothing."""
    process_bytes: int | None
    """The whole process by the system: its resident set, or on CUDA what the driver says; None where it does not say."""

    @property
    def nbytes(self) -> int:
        """Of tensors and arena."""
        return self.tensors_bytes + self.arena_bytes

    @classmethod
    def on(cls, device: torch.device, arena: Arena | None = None) -> Allocated:
        """What is allocated now; a tenth of a second on a CPU.

        >>> kept = torch.zeros(1000)
        >>> Allocated.on(torch.device("cpu")).nbytes >= 4000
        True
        """
        pages = 0 if arena is None else arena.pages.backed_bytes
        if device.type != "cuda":
            # An arena's own pages are counted by it, and its pool is host memory.
            apart = set() if arena is None else {*arena.storages(), arena.pool.bytes.untyped_storage().data_ptr()}
            return cls(
                tensors_bytes=_reachable_bytes(device, apart),
                arena_bytes=pages,
                cached_bytes=0,
                process_bytes=_resident_set(),
            )
        allocated = torch.cuda.memory_allocated(device)
        return cls(
            tensors_bytes=allocated,
            arena_bytes=pages,
            cached_bytes=torch.cuda.memory_reserved(device) - allocated,
            process_bytes=_by_driver(device),
        )


def _reachable_bytes(device: torch.device, apart: Collection[int]) -> int:
    """Distinct storages under every tensor that the collector knows, but for some."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        # By its exact type: an isinstance would wake up lazy modules, and a subclass may have no storage at all.
        exact = type(thing) in (torch.Tensor, torch.nn.Parameter)
        if exact and thing.device == device and thing.layout is torch.strided:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(num for address, num in storages.items() if address not in apart)


def _resident_set() -> int | None:
    """Main memory behind the process."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - a file that is made as it is read
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _by_driver(device: torch.device) -> int | None:
    """Device memory of this process; None without the library, or where a container hides the process from it."""
    try:
        import pynvml
    except ImportError:
        return None
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        mine = [p for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
        return mine[0].usedGpuMemory if mine else None
    finally:
        pynvml.nvmlShutdown()

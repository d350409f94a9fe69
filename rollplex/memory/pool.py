"""Host memory for permanent state and for what was moved off the device: one allocation, made once.

Many large pinned allocations fragment the host and take long; a pool is pinned once and divided by offsets. It knows
owners and sizes, and nothing of what the bytes mean.
"""

from __future__ import annotations

import gc
from collections import deque
from threading import Lock
from typing import Self

import torch

from rollplex.memory.free_list import FreeList

ALIGNMENT = 4096
"""Slots begin at multiples of a page."""


class Slot:
    """Bytes of a pool with one owner, until they are freed."""

    def __init__(self, pool: HostPool, owner: str, offset: int, nbytes: int) -> None:
        # Given up when freed: a pool that only freed slots know of goes at once, and waits for no collector.
        self._pool: HostPool | None = pool
        self.owner = owner
        self.offset = offset
        self.nbytes = nbytes

    @property
    def freed(self) -> bool:
        """Whether its bytes were given back."""
        return self._pool is None

    @property
    def bytes(self) -> torch.Tensor:
        """The slot as bytes."""
        if self._pool is None:
            raise RuntimeError(f"reading a pool slot of {self.owner}: it was freed. Take a new one.")
        return self._pool.bytes[self.offset : self.offset + self.nbytes]

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The first bytes of the slot as a tensor."""
        num = torch.Size(shape).numel() * dtype.itemsize
        return self.bytes[:num].view(dtype).view(shape)

    def free(self) -> None:
        """Give the bytes back; tensors over them must not be used any more. Twice is once."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.give(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"Slot({self.owner!r}, {self.nbytes} bytes{', freed' if self.freed else ''})"


class HostPool:
    """One preallocated stretch of host memory, pinned if asked, from which slots are taken and given back.

    >>> pool = HostPool(2**20)
    >>> with pool.take("policy.optimizer", 4096) as slot:
    ...     pool.owners()
    {'policy.optimizer': 4096}
    >>> pool.free_bytes == pool.nbytes
    True
    """

    def __init__(self, nbytes: int, *, pinned: bool = False) -> None:
        # Over a page more than asked, so that the first slot can begin at a page whatever the allocator returns.
        whole = torch.empty(nbytes + 2 * ALIGNMENT, dtype=torch.uint8, pin_memory=pinned)
        self._free = FreeList(nbytes=-(-nbytes // ALIGNMENT) * ALIGNMENT, granularity=ALIGNMENT)
        start = -whole.data_ptr() % ALIGNMENT
        self.bytes = whole[start : start + self._free.nbytes]
        self._slots: set[Slot] = set()
        self._returned: deque[Slot] = deque()
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Size of the pool."""
        return self._free.nbytes

    @property
    def free_bytes(self) -> int:
        """What is in no slot."""
        with self._lock:
            self._collect()
            return self._free.free_bytes

    def owners(self) -> dict[str, int]:
        """Bytes by owner, in slots of whole pages."""
        with self._lock:
            self._collect()
            held: dict[str, int] = {}
            for slot in sorted(self._slots, key=lambda slot: slot.offset):
                held[slot.owner] = held.get(slot.owner, 0) + self._free.rounded(slot.nbytes)
            return held

    def take(self, owner: str, nbytes: int) -> Slot:
        """A slot of at least so many bytes; their contents are whatever was there."""
        slot = self._take(owner, nbytes)
        if slot is None:
            gc.collect()  # an older run that nobody holds any more may wait in cycles
            slot = self._take(owner, nbytes)
        if slot is not None:
            return slot
        with self._lock:
            free, longest = self._free.free_bytes, self._free.longest_bytes
        raise HostPoolFullError(
            f"taking {nbytes:,} bytes of the host pool for {owner}: {free:,} of {self.nbytes:,} are free, "
            f"{longest:,} of them in a row; held by {self.owners()}. Make the pool larger, or free a slot first."
        )

    def give(self, slot: Slot) -> None:
        """Take a freed slot back, see `Slot.free`."""
        # Never with the lock: the collector may free a slot while this thread takes another.
        self._returned.append(slot)

    def _take(self, owner: str, nbytes: int) -> Slot | None:
        with self._lock:
            self._collect()
            offset = self._free.take(nbytes)
            if offset is None:
                return None
            slot = Slot(self, owner, offset, nbytes)
            self._slots.add(slot)
            return slot

    def _collect(self) -> None:
        """Take back what was given, with the lock."""
        while self._returned:
            slot = self._returned.popleft()
            self._slots.remove(slot)
            self._free.give(slot.offset, slot.nbytes)

    def __repr__(self) -> str:
        return f"HostPool({self.nbytes} bytes, {self.free_bytes} free, {len(self._slots)} slots)"


class HostPoolFullError(RuntimeError):
    """The host pool has no stretch that is long enough."""

"""Device memory at addresses that never change: regions that are evicted and admitted, within a budget of bytes.

A tensor over a region keeps its address, shape and strides while its pages are away, so parameters, graphs and an
engine in another process stay bound. What a region holds is kept in the host pool meanwhile, or declared regenerable
and dropped. Which pages: `rollplex.memory.pages`.

On a machine without a GPU the host's memory stands for a device's, and the budget is enforced as a device would. What
torch allocates by itself counts against the same budget once it is charged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock
from typing import Literal

import torch

from rollplex.memory.charge import Charge
from rollplex.memory.free_list import FreeList
from rollplex.memory.mebibytes import mebibytes
from rollplex.memory.pages import HostPages, OutOfPages, Pages
from rollplex.memory.pool import HostPool, Slot

Contents = Literal["kept", "frozen", "regenerable"]
"""Copied to the host pool on eviction; copied there once and for all, because they never change; or dropped, because
something else can make them again."""


class Region:
    """A stretch of an arena with one owner. Made by `Arena.region`."""

    def __init__(self, arena: Arena, owner: str, offset: int, nbytes: int, contents: Contents) -> None:
        self._arena = arena
        self.owner = owner
        self.offset = offset
        self.nbytes = nbytes
        self.contents: Contents = contents
        self.bytes = arena.pages.tensor(offset, nbytes)
        self.resident = False
        self.freed = False
        self.slot: Slot | None = None  # where kept contents are while the pages are away

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, *, offset: int = 0) -> torch.Tensor:
        """A tensor over bytes of the region from ``offset`` on; several tensors may share a region."""
        num = torch.Size(shape).numel() * dtype.itemsize
        if offset + num > self.nbytes:
            raise ValueError(
                f"placing a tensor of {num:,} bytes at {offset:,} of {self.owner}: the region has {self.nbytes:,} bytes"
            )
        return self.bytes[offset : offset + num].view(dtype).view(shape)

    def evict(self) -> None:
        """Return the pages to the system; contents that are kept go to the host pool first."""
        self._arena.evict(self)

    def admit(self) -> None:
        """Put pages under the addresses again, with their contents unless those are regenerable."""
        self._arena.admit(self)

    def free(self) -> None:
        """Give the addresses back for good; tensors over them must not be used any more. Twice is once."""
        self._arena.free(self)

    @contextmanager
    def paged_in(self) -> Generator[Region]:
        """Resident within a block, and as it was after it."""
        away = not self.resident
        if away:
            self.admit()
        try:
            yield self
        finally:
            if away:
                self.evict()

    def __repr__(self) -> str:
        state = "freed" if self.freed else "resident" if self.resident else "evicted"
        return f"Region({self.owner!r}, {self.nbytes} bytes, {state})"


class Arena:
    """Regions within a budget of resident bytes.

    >>> arena = Arena.host(budget_bytes=1 << 20)
    >>> region = arena.region("policy.weights", 4096)
    >>> weight = region.tensor((1024,), torch.float32).fill_(1.5)
    >>> region.evict()
    >>> arena.resident_bytes
    0
    >>> region.admit()
    >>> weight[0].item()
    1.5
    >>> arena.close()
    """

    def __init__(self, pages: Pages, budget_bytes: int, pool: HostPool) -> None:
        self.pages = pages
        self.budget_bytes = budget_bytes
        self.pool = pool
        self._addresses = FreeList(nbytes=pages.nbytes, granularity=pages.granularity)
        self._regions: set[Region] = set()
        self._held: dict[str, int] = {}
        self._fullest: dict[str, int] = {}
        self._returned: deque[tuple[str, int]] = deque()
        self._lock = RLock()

    @classmethod
    def host(cls, budget_bytes: int, *, address_bytes: int | None = None, pool: HostPool | None = None) -> Arena:
        """An arena over main memory.

        ``address_bytes`` (eight budgets, unless given) are addresses and cost no memory; they bound the sum of all
        regions, evicted ones included. Without a pool, one of two budgets is made.
        """
        pages = HostPages.reserve(8 * budget_bytes if address_bytes is None else address_bytes)
        return cls(pages, budget_bytes, pool or HostPool(2 * budget_bytes))

    @classmethod
    def cuda(
        cls, budget_bytes: int, *, device: int = 0, address_bytes: int | None = None, pool: HostPool | None = None
    ) -> Arena:
        """An arena over the memory of a CUDA device, with a pinned pool of two budgets unless one is given."""
        from rollplex.memory.cuda_pages import CudaPages

        pages = CudaPages.reserve(8 * budget_bytes if address_bytes is None else address_bytes, device=device)
        return cls(pages, budget_bytes, pool or HostPool(2 * budget_bytes, pinned=True))

    @property
    def resident_bytes(self) -> int:
        """Bytes of regions with pages under them, and of charges."""
        return sum(self.owners().values())

    def owners(self) -> dict[str, int]:
        """Resident bytes by owner, the largest first."""
        with self._lock:
            self._collect()
            return dict(sorted(self._held.items(), key=lambda item: (-item[1], item[0])))

    def fullest(self) -> dict[str, int]:
        """Resident bytes by owner at the fullest moment since this was last asked; from now on a new one is looked for."""
        with self._lock:
            self._collect()
            found, self._fullest = self._fullest, dict(self._held)
            return found

    def charge(self, owner: str, nbytes: int) -> Charge:
        """Count bytes that torch allocated against the budget, for as long as the charge lives."""
        with self._lock:
            self._check_budget(owner, nbytes)
            self._count(owner, nbytes)
        return Charge(owner, nbytes, self._give_back)

    def _give_back(self, owner: str, nbytes: int) -> None:
        # Counted later, with the lock: the collector may end a charge while this thread is counting another.
        self._returned.append((owner, nbytes))

    def _collect(self) -> None:
        """Count off the charges that have ended, with the lock."""
        while self._returned:
            owner, nbytes = self._returned.popleft()
            self._count(owner, -nbytes)

    def _count(self, owner: str, nbytes: int) -> None:
        """Count bytes on or off, with the lock."""
        held = self._held.pop(owner, 0) + nbytes
        if held:
            self._held[owner] = held
        if nbytes > 0 and sum(self._held.values()) > sum(self._fullest.values()):
            self._fullest = dict(self._held)

    def storages(self) -> set[int]:
        """Addresses of the storages that lie in it, resident or not."""
        with self._lock:
            return {region.bytes.data_ptr() for region in self._regions}

    def region(self, owner: str, nbytes: int, *, contents: Contents = "kept", resident: bool = True) -> Region:
        """A new region of zeros; one that is not resident has addresses and takes nothing of the budget."""
        with self._lock:
            if resident:
                self._check_budget(owner, self._addresses.rounded(nbytes))
            offset = self._addresses.take(nbytes)
            if offset is None:
                raise ValueError(
                    f"reserving {nbytes:,} bytes of addresses for {owner}: the arena reserved "
                    f"{self.pages.nbytes:,} and {self._addresses.longest_bytes:,} in a row are free. Free regions, or "
                    "make the arena with more address_bytes; addresses cost no memory."
                )
            region = Region(self, owner, offset, nbytes, contents)
            if resident:
                try:
                    self._back(region)
                except BaseException:
                    self._addresses.give(offset, nbytes)
                    raise
            self._regions.add(region)
            return region

    def evict(self, region: Region) -> None:
        """Take the pages from under a region. Evicting an evicted one changes nothing."""
        with self._lock:
            self._check_alive(region, "evicting")
            if not region.resident:
                return
            if region.contents != "regenerable" and region.slot is None:
                slot = self.pool.take(region.owner, region.nbytes)
                self.pages.settle()  # another lane may still be writing what is copied here
                slot.bytes.copy_(region.bytes)
                region.slot = slot
            self._unback(region)

    def admit(self, region: Region) -> None:
        """Put pages under a region. Admitting a resident one changes nothing."""
        with self._lock:
            self._check_alive(region, "admitting")
            if region.resident:
                return
            if self.pages.touched(region.offset, self._addresses.rounded(region.nbytes)):
                self.pages.release(region.offset, self._addresses.rounded(region.nbytes))
                raise RuntimeError(
                    f"admitting {region.owner}: its addresses were read or written while it was evicted. What was read "
                    "were zeros; what was written is dropped now, and its contents are as they were, so that this can be "
                    "tried again. Admit a region before anything uses tensors over it, or move the run out with "
                    "run.use(None) to look."
                )
            self._check_budget(region.owner, self._addresses.rounded(region.nbytes))
            self._back(region)
            if region.slot is not None:
                region.bytes.copy_(region.slot.bytes)
                if region.contents == "kept":
                    region.slot.free()
                    region.slot = None

    def free(self, region: Region) -> None:
        """Give pages, addresses and kept contents of a region back."""
        with self._lock:
            if region.freed:
                return
            if region.resident:
                self._unback(region)
            else:  # pages may have come back by a touch
                self.pages.release(region.offset, self._addresses.rounded(region.nbytes))
            self._addresses.give(region.offset, region.nbytes)
            self._regions.remove(region)
            if region.slot is not None:
                region.slot.free()
                region.slot = None
            region.freed = True

    def close(self) -> None:
        """Free every region and return all pages."""
        for region in list(self._regions):
            self.free(region)
        self.pages.close()

    def _check_alive(self, region: Region, doing: str) -> None:
        if region.freed:
            raise RuntimeError(f"{doing} {region.owner}: the region was freed. Make a new one.")

    def _check_budget(self, owner: str, nbytes: int) -> None:
        if self.resident_bytes + nbytes > self.budget_bytes:
            raise OutOfDeviceMemory(owner=owner, nbytes=nbytes, budget_bytes=self.budget_bytes, owners=self.owners())

    def _back(self, region: Region) -> None:
        """Put pages under a region; a device that others have filled is as full as one whose budget is spent."""
        wanted = self._addresses.rounded(region.nbytes)
        try:
            self.pages.back(region.offset, wanted)
        except OutOfPages as error:
            owners = self.owners()
            room = sum(owners.values()) + error.free_bytes
            raise OutOfDeviceMemory(owner=region.owner, nbytes=wanted, budget_bytes=room, owners=owners) from error
        region.resident = True
        self._count(region.owner, wanted)

    def _unback(self, region: Region) -> None:
        nbytes = self._addresses.rounded(region.nbytes)
        self.pages.release(region.offset, nbytes)
        region.resident = False
        self._count(region.owner, -nbytes)

    def __repr__(self) -> str:
        return f"Arena({self.resident_bytes} of {self.budget_bytes} bytes resident, {len(self._regions)} regions)"


class OutOfDeviceMemory(RuntimeError):
    """The budget of an arena would be exceeded, or the device has no pages left; nothing was changed."""

    def __init__(self, *, owner: str, nbytes: int, budget_bytes: int, owners: dict[str, int]) -> None:
        self.owner = owner
        self.nbytes = nbytes
        self.budget_bytes = budget_bytes
        self.owners = owners
        held = sum(owners.values())
        table = "\n".join(f"  {size / 2**20:12,.2f} MiB  {name}" for name, size in owners.items())
        super().__init__(
            f"admitting {mebibytes(nbytes)} of {owner}: {held / 2**20:,.2f} of {budget_bytes / 2**20:,.2f} MiB are held, "
            f"so {mebibytes(held + nbytes - budget_bytes)} are missing. Evict one of these, or raise the budget:\n{table}"
        )

"""A range of addresses whose pages come and go: the part of an arena that differs between devices.

The host's is here: an anonymous file in memory, mapped once. Released pages go back to the system, addresses stay, and
another process that is given the file's descriptor maps the very same pages. A CUDA device's are in
`rollplex.memory.cuda_pages`.
"""

from __future__ import annotations

import mmap
import os
from typing import Protocol, Self

import torch


class Pages(Protocol):
    """Addresses reserved once; physical pages under parts of them."""

    @property
    def nbytes(self) -> int:
        """Length of the range."""
        ...

    @property
    def granularity(self) -> int:
        """Offsets and lengths are multiples of this."""
        ...

    @property
    def backed_bytes(self) -> int:
        """Physical memory behind the range, as the system counts it."""
        ...

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes at an offset, as a tensor with a storage of its own; valid for as long as the range is."""
        ...

    def back(self, offset: int, nbytes: int) -> None:
        """Put pages of zeros under a stretch; `OutOfPages` where the system has none, and nothing changed."""
        ...

    def settle(self) -> None:
        """Wait until work in flight on the range is done."""
        ...

    def release(self, offset: int, nbytes: int) -> None:
        """Return the pages of a stretch to the system; its contents are gone."""
        ...

    def touched(self, offset: int, nbytes: int) -> bool:
        """Whether a released stretch was read or written since."""
        ...

    def close(self) -> None:
        """Return everything; tensors over the range lose their contents and must not be used any more."""
        ...


class OutOfPages(MemoryError):
    """The system has no pages left for a stretch."""

    def __init__(self, *, nbytes: int, free_bytes: int) -> None:
        self.nbytes = nbytes
        self.free_bytes = free_bytes
        super().__init__(
            f"backing {nbytes:,} bytes: the device has {free_bytes:,} bytes free. Release a stretch first."
        )


class HostPages:
    """Pages of main memory, by the descriptor of an anonymous file: a fresh one, or one that was passed on.

    Closing closes the descriptor.

    >>> pages = HostPages.reserve(1 << 20)
    >>> pages.tensor(0, 4096).fill_(7)[0].item(), pages.backed_bytes
    (7, 4096)
    >>> pages.release(0, 4096)
    >>> pages.backed_bytes
    0
    >>> pages.close()
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._nbytes = os.fstat(descriptor).st_size
        self._mapping = mmap.mmap(descriptor, self._nbytes)

    @classmethod
    def reserve(cls, nbytes: int) -> Self:
        """Fresh addresses, with no pages under them."""
        descriptor = os.memfd_create("rollplex-arena")
        # A length costs no memory: pages come with the first touch.
        os.ftruncate(descriptor, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        return cls(descriptor)

    @property
    def nbytes(self) -> int:
        """Length of the range."""
        return self._nbytes

    @property
    def granularity(self) -> int:
        """A page."""
        return mmap.PAGESIZE

    @property
    def descriptor(self) -> int:
        """Of the anonymous file; pass it on with ``pass_fds`` or over a socket."""
        if self._descriptor is None:
            raise RuntimeError("using an arena's pages: they were closed. Make a new arena.")
        return self._descriptor

    @property
    def backed_bytes(self) -> int:
        """Blocks of the file."""
        return os.fstat(self.descriptor).st_blocks * 512

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes at an offset, as a tensor with a storage of its own."""
        # A storage of its own: resources are told apart by storage, and an arena's regions are different resources.
        return torch.frombuffer(self._mapping, dtype=torch.uint8, count=nbytes, offset=offset)

    def back(self, offset: int, nbytes: int) -> None:
        """Nothing to do: the system puts a page where one is touched."""

    def settle(self) -> None:
        """Nothing to do: a CPU's work is done when its call returns."""

    def release(self, offset: int, nbytes: int) -> None:
        """Punch a hole in the file: the pages leave every process that maps it."""
        self._mapping.madvise(mmap.MADV_REMOVE, offset, nbytes)

    def touched(self, offset: int, nbytes: int) -> bool:
        """Whether a released stretch has pages again."""
        try:
            return os.lseek(self.descriptor, offset, os.SEEK_DATA) < offset + nbytes
        except OSError:  # no data at or after the offset
            return False

    def close(self) -> None:
        """Return all pages and the descriptor; the addresses go when the last tensor over them does."""
        if self._descriptor is not None:
            self.release(0, self._nbytes)
            os.close(self._descriptor)
            self._descriptor = None

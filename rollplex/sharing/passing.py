"""A region of host memory on its way to another process, which then maps the very same pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import torch

from rollplex.memory.arena import Region
from rollplex.memory.pages import HostPages


@dataclass(frozen=True)
class SharedPages:
    """A stretch of an anonymous file in memory; pickle it into the arguments of a process that is being started.

    >>> from rollplex.memory.arena import Arena
    >>> from rollplex.memory.pool import HostPool
    >>> pages = HostPages.reserve(1 << 20)
    >>> arena = Arena(pages, pages.nbytes, HostPool(0))
    >>> region = arena.region("actor.weights", 4096)
    >>> elsewhere = SharedPages.of(region, pages.descriptor).map()
    >>> _ = region.bytes.fill_(7)
    >>> int(elsewhere[0])
    7
    >>> del elsewhere
    >>> arena.close()
    """

    descriptor: int
    """Of the file, in this process."""
    offset: int
    """Where the stretch begins."""
    nbytes: int
    """Its length."""

    @classmethod
    def of(cls, region: Region, descriptor: int) -> SharedPages:
        """The stretch of a region, whose arena's pages have a descriptor."""
        return cls(descriptor, region.offset, region.nbytes)

    def map(self) -> torch.Tensor:
        """The bytes, mapped once more: here, or in the process that this was sent to."""
        return HostPages(self.descriptor).tensor(self.offset, self.nbytes)

    def __reduce__(self) -> tuple[Callable[..., SharedPages], tuple[Any, ...]]:
        # A descriptor is a number of one process; the start of another hands the file itself over.
        return _received, (reduction.DupFd(self.descriptor), self.offset, self.nbytes)


def _received(duplicate: Any, offset: int, nbytes: int) -> SharedPages:
    return SharedPages(duplicate.detach(), offset, nbytes)

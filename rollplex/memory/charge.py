"""Bytes of a device that torch itself allocated, as they count against an arena's budget.

It knows an owner and a number. It holds no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import finalize


class Charge:
    """So many bytes of one owner, until this is freed or nobody holds it any more.

    >>> from rollplex.memory.arena import Arena
    >>> arena = Arena.host(budget_bytes=1 << 20)
    >>> charge = arena.charge("policy.tape", 4096)
    >>> arena.owners()
    {'policy.tape': 4096}
    >>> del charge
    >>> arena.owners()
    {}
    >>> arena.close()
    """

    def __init__(self, owner: str, nbytes: int, give_back: Callable[[str, int], None]) -> None:
        self.owner = owner
        self.nbytes = nbytes
        self._end = finalize(self, give_back, owner, nbytes)
        self._end.atexit = False

    def free(self) -> None:
        """Give the bytes back. Twice is once."""
        self._end()

    def __repr__(self) -> str:
        return f"Charge({self.owner!r}, {self.nbytes} bytes{'' if self._end.alive else ', freed'})"

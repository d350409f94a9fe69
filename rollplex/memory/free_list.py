"""Which stretches of a range are free: offsets and lengths, no bytes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(eq=False)
class FreeList:
    """Free stretches of a range; the smallest that fits is taken, and neighbours that become free are joined.

    >>> free = FreeList(nbytes=1024, granularity=256)
    >>> free.take(300), free.take(1), free.take(512)
    (0, 512, None)
    """

    nbytes: int
    """Length of the range."""
    granularity: int
    """Every stretch begins and ends at a multiple of this."""
    _starts: list[int] = field(init=False)
    _lengths: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._starts = [0]
        self._lengths = {0: self.nbytes}

    def rounded(self, nbytes: int) -> int:
        """Length that a request takes up."""
        return -(-max(nbytes, 1) // self.granularity) * self.granularity

    def take(self, nbytes: int) -> int | None:
        """Offset of a stretch, or None if no free one is long enough."""
        wanted = self.rounded(nbytes)
        fitting = [(length, start) for start, length in self._lengths.items() if length >= wanted]
        if not fitting:
            return None
        length, start = min(fitting)
        self._remove(start)
        if length > wanted:
            self._insert(start + wanted, length - wanted)
        return start

    def give(self, offset: int, nbytes: int) -> None:
        """A stretch is free again."""
        start, end = offset, offset + self.rounded(nbytes)
        place = bisect_left(self._starts, start)
        before = self._starts[place - 1] if place else None
        after = self._starts[place] if place < len(self._starts) else None
        assert before is None or before + self._lengths[before] <= start, "given back twice"
        assert after is None or end <= after, "given back twice"
        if after == end:
            end += self._remove(end)
        if before is not None and before + self._lengths[before] == start:
            start = before
            self._remove(before)
        self._insert(start, end - start)

    @property
    def free_bytes(self) -> int:
        """All that is free."""
        return sum(self._lengths.values())

    @property
    def longest_bytes(self) -> int:
        """The longest request that can be met."""
        return max(self._lengths.values(), default=0)

    def _insert(self, start: int, length: int) -> None:
        self._starts.insert(bisect_left(self._starts, start), start)
        self._lengths[start] = length

    def _remove(self, start: int) -> int:
        self._starts.pop(bisect_left(self._starts, start))
        return self._lengths.pop(start)

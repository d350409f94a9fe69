"""A field of a step while it is still being made: parts arrive one by one.

A finished value (`Rollout`, `Rewards`) has the same ``parts()``, so a consumer is written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar, final

Part = TypeVar("Part")


@final
class Waiting:
    """Said instead of a part, or as a tick, when nothing has arrived yet."""

    def __repr__(self) -> str:
        return "WAITING"


WAITING: Final = Waiting()


@dataclass(frozen=True, slots=True)
class Ready(Generic[Part]):
    """Yielded by a phase as a tick: a part of its value is complete."""

    part: Part
    """The part."""
    label: str
    """What the tick did."""


@dataclass(eq=False)
class Feed(Generic[Part]):
    """Parts of one field, appended by the executor, read by the phases that stream it.

    >>> feed = Feed[int]()
    >>> parts = feed.parts(); next(parts)
    WAITING
    >>> feed.append(7); feed.close(); list(parts)
    [7]
    """

    arrived: list[Part] = field(default_factory=list)
    """In order of arrival."""
    closed: bool = False
    """Whether the producer has finished."""

    def append(self, part: Part) -> None:
        """Add a part."""
        self.arrived.append(part)

    def close(self) -> None:
        """Say that no more will come."""
        self.closed = True

    def parts(self) -> Iterator[Part | Waiting]:
        """Every part in order of arrival, and ``WAITING`` each time there is none yet."""
        index = 0
        while True:
            if index < len(self.arrived):
                yield self.arrived[index]
                index += 1
            elif self.closed:
                return
            else:
                yield WAITING

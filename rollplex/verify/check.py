"""What a check found, and whether a negative control was caught."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A value that must not exceed its limit."""

    name: str
    """What is compared."""
    case: str
    """On what."""
    value: float
    """What was found."""
    limit: float
    """The largest value that passes."""

    @property
    def passed(self) -> bool:
        """Whether the value is within its limit; NaN is not."""
        return self.value <= self.limit


@dataclass(frozen=True)
class Control:
    """Something deliberately wrong, that the same comparison must notice."""

    name: str
    """What was done wrong."""
    caught: bool
    """Whether the comparison noticed."""

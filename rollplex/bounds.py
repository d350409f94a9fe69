"""What a number that a person gives may be, and the refusal of one that is not.

Numbers are looked at where they are given: a length of zero or NaN would otherwise come out as a step time. This file
knows no quantity by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral, Real


@dataclass(frozen=True)
class Bounds:
    """An interval of finite numbers."""

    low: float = 0.0
    """The least that is allowed."""
    high: float = inf
    """The most that is allowed."""
    whole: bool = False
    """Whether only whole numbers are."""
    above: bool = False
    """Whether it must be more than ``low``, not only as much."""

    def hold(self, value: object) -> bool:
        """Whether a value is such a number.

        >>> [COUNT.hold(value) for value in (1, 0, 2.5, float("nan"), "4")]
        [True, False, False, False, False]
        """
        if not isinstance(value, Integral if self.whole else Real):
            return False
        number = float(value)
        return isfinite(number) and self.low <= number <= self.high and not (self.above and number == self.low)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.low == -inf:
            return f"{kind}, and a finite one"
        if self.high < inf:
            return (
                f"{kind} {'above' if self.above else 'from'} {self.low:g} {'up ' if self.above else ''}to {self.high:g}"
            )
        return f"{kind} above {self.low:g}" if self.above else f"{kind} of at least {self.low:g}"


COUNT = Bounds(1, whole=True)
"""How many of something that there must be."""
NUMBER = Bounds(0, whole=True)
"""How many of something that there may be none of."""
POSITIVE = Bounds(0, above=True)
"""A rate or a size."""
AMOUNT = Bounds(0)
"""A time, a spread: zero is one."""
ONE_OR_MORE = Bounds(1)
"""A length in tokens, a factor that never shortens a time."""
SHARE = Bounds(0, 1)
"""A part of a whole, which may be none of it."""
EFFICIENCY = Bounds(0, 1, above=True)
"""A part of a peak, which cannot be none of it."""
FINITE = Bounds(-inf)
"""Any number."""


def expect(doing: str, values: Mapping[str, object], **bounds: Bounds) -> None:
    """Refuse the first value that is not within its bounds.

    >>> expect("making a Workload", {"prompts": 0}, prompts=COUNT)
    Traceback (most recent call last):
    ValueError: making a Workload: prompts is 0; give a whole number of at least 1
    """
    for name, bound in bounds.items():
        if not bound.hold(values[name]):
            raise ValueError(f"{doing}: {name} is {values[name]!r}; give {bound}")

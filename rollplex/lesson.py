"""Exercises of the lessons: an answer is checked where it is given.

It knows answers and what makes one right. It knows no lesson.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLOSE = 1e-6
"""Relative difference within which two numbers are the same answer."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of an answer."""

    right: bool | None
    """None while nothing was answered."""
    text: str
    """What is said about it."""

    def __repr__(self) -> str:
        return self.text


def check(answer: Any, right: Any, *, hint: str) -> Verdict:
    """Say whether an answer is right; ``right`` is the value that it should be, or a function that judges it.

    Numbers are compared within a millionth. ``...`` is no answer yet; an answer that cannot be judged is a wrong one.

    >>> check(..., 4, hint="Count the groups.")
    Waiting for an answer: put it in place of the dots.
    >>> check(5, 4, hint="Count the groups.")
    Not yet: 5. Count the groups.
    >>> check(4.0, 4, hint="Count the groups.")
    Right.
    """
    if answer is ...:
        return Verdict(right=None, text="Waiting for an answer: put it in place of the dots.")
    try:
        good = bool(right(answer) if isinstance(right, Callable) else _same(answer, right))
    except Exception as error:  # noqa: BLE001 - whatever a learner tried, the lesson goes on
        return Verdict(
            right=False, text=f"Not yet: judging {answer!r} failed with {type(error).__name__}: {error}. {hint}"
        )
    return Verdict(right=good, text="Right." if good else f"Not yet: {answer!r}. {hint}")


def _same(answer: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(answer, numbers) and isinstance(right, numbers):
        return math.isclose(answer, right, rel_tol=CLOSE)
    return bool(answer == right)

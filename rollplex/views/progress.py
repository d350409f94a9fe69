"""Progress of a loop as one line of text. It knows a terminal from a file, and nothing of notebooks."""

from __future__ import annotations

import time
from typing import TextIO

from rollplex.views.units import clock, digits, seconds

_SPARSE_S = 10.0
"""Least seconds between two lines in a file: a log of a day stays short."""


class Progress:
    """A line that is rewritten on a terminal; elsewhere a line now and then.

    >>> import sys
    >>> Progress(4, sys.stdout).show(1, line(1, 4, reward=0.5, elapsed_s=2.0))
    step 1/4  25%  reward 0.5  2 s a step  6 s left
    """

    def __init__(self, num: int, stream: TextIO) -> None:
        self._num = num
        self._stream = stream
        self._rewrites = stream.isatty()
        self._last_s = float("-inf")
        self._shown = ""

    def show(self, done: int, text: str, *, last: bool = False) -> None:
        """Tell how far the loop is; off a terminal only the first, the last and sparse ones are printed."""
        if self._rewrites:
            # \x1b[K clears what a longer line left behind.
            self._stream.write(f"\r{_gauge(done, self._num)} {text}\x1b[K" + ("\n" if last else ""))
        elif text != self._shown and (last or time.monotonic() - self._last_s >= _SPARSE_S):
            self._stream.write(text + "\n")
            self._last_s = time.monotonic()
            self._shown = text
        self._stream.flush()

    def say(self, text: str) -> None:
        """Print a message on a line of its own."""
        self._stream.write(("\r\x1b[K" if self._rewrites else "") + text.rstrip("\n") + "\n")
        self._stream.flush()


def line(done: int, num: int, *, reward: float | None, elapsed_s: float) -> str:
    """The words: steps done, mean reward of the last one, seconds a step, time left.

    >>> line(0, 5, reward=None, elapsed_s=0.0)
    'step 0/5  0%'
    """
    parts = [f"step {done}/{num}", f"{done / num:.0%}" if num else "100%"]
    if reward is not None:
        parts.append(f"reward {digits(reward)}")
    if done:
        parts.append(f"{seconds(elapsed_s / done)} a step")
        parts.append(f"{clock(elapsed_s / done * (num - done))} left" if done < num else f"{clock(elapsed_s)} in all")
    return "  ".join(parts)


def _gauge(done: int, num: int, width: int = 20) -> str:
    full = width * done // num if num else width
    return "█" * full + "░" * (width - full)

"""Interrupts that wait: Ctrl-C, or a notebook's stop button, while something must not be left half done.

It knows the signal. It does not know what is being done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Generator[None]:
    """Raise an interrupt that comes within the block at its end; keep such blocks short.

    >>> done = []
    >>> try:
    ...     with held_back():
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("all of it")
    ... except KeyboardInterrupt:
    ...     print("interrupted after", done)
    interrupted after ['all of it']
    """
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread is interrupted, and only it may set a handler.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])

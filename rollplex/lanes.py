"""Three lanes that work on different chunks at the same time: one loads, one steps, one stores.

On CUDA a lane is a stream, and events order the lanes on a chunk and on the buffer that it shares with others. On a CPU
the same calls run in turns.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

import torch

Lane = Literal["load", "step", "store"]
"""``step`` is the caller's own stream."""


class Lanes:
    """The lanes of one update.

    >>> lanes = Lanes(torch.device("cpu"))
    >>> with lanes.work("load", 0):
    ...     pass
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[Lane, torch.cuda.Stream] = {}
        self._done: dict[tuple[Lane, int], torch.cuda.Event] = {}
        if device.type == "cuda":
            self._streams = {lane: torch.cuda.Stream(device) for lane in ("load", "store")}
            for stream in self._streams.values():
                stream.wait_stream(torch.cuda.current_stream(device))

    @contextmanager
    def work(self, lane: Lane, chunk: int, *after: tuple[Lane, int]) -> Generator[None]:
        """Work of a lane on a chunk, once the given works of other lanes are done."""
        if self._device.type != "cuda":
            yield
            return
        stream = self._streams.get(lane) or torch.cuda.current_stream(self._device)
        for earlier in after:
            if earlier in self._done:
                stream.wait_event(self._done[earlier])
        with torch.cuda.stream(stream):
            yield
            self._done[lane, chunk] = event = torch.cuda.Event()
            event.record(stream)

    def join(self) -> None:
        """What the caller launches next comes after all of it."""
        for stream in self._streams.values():
            torch.cuda.current_stream(self._device).wait_stream(stream)

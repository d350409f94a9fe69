"""The step being filled in: what a stage's slots may take from it, and the feeds of fields still being made."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollplex.boundary import PrefixState
from rollplex.feed import Feed, Ready
from rollplex.schedule import Slot, Stage
from rollplex.step import Step


class Board:
    """One `Step` in the making; safe to use from one thread a lane.

    Whatever happens to a phase, ``step`` holds everything that was finished before.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.index = step.index
        self._feeds: dict[str, Feed[Any]] = {}
        self._lock = threading.Lock()

    def open(self, stage: Stage) -> None:
        """Make a feed for every field that some slot of the stage streams from another."""
        made = {slot.phase.writes for slot in stage.slots}
        streamed = {field for slot in stage.slots for field in slot.streams}
        self._feeds = {field: Feed() for field in streamed & made}

    def inputs(self, slot: Slot) -> dict[str, Any]:
        """The values of the fields that a slot takes, or their feeds."""
        with self._lock:
            return {
                field: self._feeds[field]
                if field in slot.streams and field in self._feeds
                else getattr(self.step, field)
                for field in slot.takes
            }

    def part(self, slot: Slot, ready: Ready[Any]) -> None:
        """Pass a finished part on to whoever streams it."""
        feed = self._feeds.get(slot.phase.writes)
        if feed is not None:
            feed.append(ready.part)

    def fill(self, slot: Slot, value: Any) -> None:
        """A phase has finished: write its field and close its feed."""
        with self._lock:
            self.step = self.step.fill(slot.phase.writes, value)
        feed = self._feeds.get(slot.phase.writes)
        if feed is not None:
            feed.close()

    def spend(self, fields: Sequence[str]) -> None:
        """Prefixes that no phase of the step reads any more give their memory back."""
        with self._lock:
            for name in fields:
                value = getattr(self.step, name)
                if isinstance(value, PrefixState):
                    self.step = replace(self.step, **{name: value.spent()})

"""Writing a trace: turns what an executor did into ticks and memory samples.

Times of host work come from the host's clock. Work on a CUDA device is timed by events on its stream, because a host
clock around an asynchronous launch would measure the launch; they are read once, when the step is over.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

import torch

from rollplex.memory.arena import Arena
from rollplex.memory.owners import Owners
from rollplex.phases.phase import Phase
from rollplex.schedule import Slot, Stage
from rollplex.step import Step
from rollplex.trace import MemorySample, Tick, Trace


class Recorder:
    """Appends to one `Trace`; ``arena`` is where objects come and go, if there is one."""

    def __init__(
        self, trace: Trace, phases: Sequence[Phase], device: torch.device, *, arena: Arena | None = None
    ) -> None:
        self.trace = trace
        self.phases = tuple(phases)
        self.use(arena)
        self.lock = RLock()
        """Held from a look at who owns what until it is written down, so that looks follow one another."""
        self.cuda = device.type == "cuda"
        self.device = device
        self._origin = time.perf_counter()
        self._start = torch.cuda.Event(enable_timing=True) if self.cuda else None
        if self._start is not None:
            self._start.record()
        self._pending: list[_Pending] = []
        self._streams: dict[str, Any] = {}
        self._samples: list[tuple[int, Any, Owners]] = []
        self._last: Owners | None = None

    def use(self, arena: Arena | None) -> None:
        """Objects come and go in an arena from now on, or in none; its budget is the trace's."""
        self.arena = arena
        self.trace.budget_bytes = None if arena is None else arena.budget_bytes

    def now(self) -> float:
        """Seconds on the trace's clock."""
        return time.perf_counter() - self._origin

    def begin(self, step: Step, schedule: str) -> None:
        """A step starts under a schedule; what an attempt at it left behind that was broken off is forgotten."""
        if step.index in self.trace.schedules:
            self.trace.forget(step.index)
            self._pending.clear()
            self._samples.clear()
            self._last = None
        self.trace.schedules[step.index] = schedule
        self.sample(step)  # what is there before the first tick

    @contextmanager
    def lane(self, lane: str) -> Generator[None]:
        """Work inside goes to the lane's own stream; on a CPU there is nothing to do."""
        with torch.cuda.stream(self._stream(lane)) if self.cuda else nullcontext():
            yield

    def wait(self, lane: str, others: Sequence[str]) -> None:
        """What the lane does next comes after what the others have launched so far."""
        if self.cuda:
            for other in others:
                self._stream(lane).wait_stream(self._stream(other))

    def mark(self, lane: str) -> Any:
        """This moment on a lane: seconds, or an event for the device's clock."""
        if not self.cuda:
            return self.now()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream(lane))
        return event

    def tick(self, index: int, stage: Stage, slot: Slot, label: str, start: Any) -> None:
        """A tick of a slot ends now, in the step of this index."""
        pending = _Pending(index, stage.name, slot.lane, slot.phase.name, label, start, self.mark(slot.lane))
        if self.cuda:
            self._pending.append(pending)
        else:
            self.trace.ticks.append(pending.tick(start, pending.end))

    def sample(self, step: Step) -> None:
        """Bytes by owner, if they changed since the last sample; call it where a lane's own stream is current.

        Where an arena was fuller in the meantime than it is now, that moment has a sample of its own before this one.
        """
        with self.lock:
            owners = self.owners(step)
            if self.arena is not None:
                fullest = self.arena.fullest()
                if sum(fullest.values()) > sum(owners.arena.values()):
                    self._append(step, replace(owners, arena=fullest))
            self._append(step, owners)

    def _append(self, step: Step, owners: Owners) -> None:
        if owners == self._last:
            return
        self._last = owners
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self._samples.append((step.index, event, owners))
        else:
            self.trace.samples.append(MemorySample(step.index, self.now(), owners.device, owners.host))

    def owners(self, step: Step | None) -> Owners:
        """Bytes by owner now."""
        return Owners.of(self.phases, step, self.arena)

    def finish(self) -> None:
        """The step is over: read the device's clock for its ticks and samples."""
        if self.cuda and self._start is not None:
            torch.cuda.synchronize(self.device)
            for p in self._pending:
                times = [self._start.elapsed_time(event) / 1e3 for event in (p.start, p.end)]
                self.trace.ticks.append(p.tick(*times))
            for index, event, owners in self._samples:
                time_s = self._start.elapsed_time(event) / 1e3
                self.trace.samples.append(MemorySample(index, time_s, owners.device, owners.host))
            self._pending.clear()
            self._samples.clear()

    def _stream(self, lane: str) -> Any:
        if lane not in self._streams:
            self._streams[lane] = torch.cuda.Stream(self.device)
        return self._streams[lane]


@dataclass(frozen=True, slots=True)
class _Pending:
    step: int
    stage: str
    lane: str
    phase: str
    label: str
    start: Any
    end: Any

    def tick(self, start_s: float, end_s: float) -> Tick:
        return Tick(self.step, self.stage, self.lane, self.phase, self.label, start_s, end_s)

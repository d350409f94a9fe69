"""Running a timetable: lanes into ticks, ticks into a step and a trace.

``interleave``: one host thread gives the lanes turns, tick by tick. Deterministic; on CUDA each lane has its own stream,
so the device overlaps what the host only launches. ``threads``: one host thread a lane.

Both give the numbers of the serial step: phases share no state but read-only weights, and each owns its randomness.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from rollplex.board import Board
from rollplex.feed import Ready, Waiting
from rollplex.interrupts import held_back
from rollplex.memory.memory import Memory
from rollplex.recorder import Recorder
from rollplex.schedule import Slot, Stage, Timetable
from rollplex.trace import ADMIT

ExecutorName = Literal["interleave", "threads"]


def execute(
    timetable: Timetable,
    board: Board,
    recorder: Recorder,
    executor: ExecutorName = "interleave",
    memory: Memory | None = None,
) -> None:
    """Run every stage on the board; after an error the board keeps what was finished.

    A ``memory`` has what a phase uses on the device before its first tick, and takes away what has had its last use.
    """
    run_stage = EXECUTORS[executor]
    if memory is not None:
        memory.rest()  # whatever was run by hand meanwhile
    recorder.begin(board.step, timetable.name)
    try:
        for stage in timetable.stages:
            board.open(stage)
            lanes = [Lane(name, slots, stage, board, recorder, memory) for name, slots in stage.lanes().items()]
            for lane in lanes:
                recorder.wait(lane.name, [other for s in timetable.stages for other in s.lanes()])
            try:
                run_stage(lanes)
            finally:
                with held_back():
                    for lane in lanes:
                        lane.close()
    finally:
        if memory is not None:
            memory.rest()
        recorder.finish()


@dataclass(eq=False)
class Lane:
    """The slots of one lane of a stage, run one after another, one tick at a time."""

    name: str
    """Name of the lane."""
    slots: list[Slot]
    """Those still to run; the first may be under way."""
    stage: Stage
    """Where it belongs."""
    board: Board
    """The step being filled."""
    recorder: Recorder
    """The trace being written."""
    memory: Memory | None = None
    """The device with a budget, if there is one."""
    generator: Generator[Any, None, Any] | None = None
    """The first slot's phase, under way."""
    credit: float = field(default=0.0)
    """Turns saved up, where one thread serves all lanes."""

    @property
    def done(self) -> bool:
        """Whether every slot has finished."""
        return not self.slots

    def advance(self) -> bool:
        """Run one tick of the first slot; False if it is waiting for another lane."""
        slot = self.slots[0]
        with held_back() if slot.phase.unbroken else nullcontext():
            return self._advance(slot)

    def _advance(self, slot: Slot) -> bool:
        with self.recorder.lane(self.name):
            if slot.streams:
                self.recorder.wait(self.name, list(self.stage.lanes()))
            start: Any = None
            try:
                if self.generator is None:
                    self._admit(slot)
                    self.generator = slot.phase.run(**self.board.inputs(slot))
                start = self.recorder.mark(self.name)
                with nullcontext() if self.memory is None else self.memory.charging(slot.phase.name):
                    tick = next(self.generator)
            except StopIteration as stop:
                self._check_autograd(slot)
                self._finish(slot, stop.value, start)
                return True
            except Exception as error:
                error.add_note(
                    f"(in phase {slot.phase.name!r} of step {self.board.index}; what was finished "
                    "before is in run.last)"
                )
                raise
        self._check_autograd(slot)
        if isinstance(tick, Waiting):
            return False
        if isinstance(tick, Ready):
            self.board.part(slot, tick)
        self._tick(slot, tick.label if isinstance(tick, Ready) else tick, start)
        if self.memory is not None:
            self._sample()
        return True

    def _admit(self, slot: Slot) -> None:
        """What the phase uses comes, in a tick of its own: another lane's may begin meanwhile."""
        if self.memory is not None:
            start = self.recorder.mark(self.name)
            self.memory.begin(slot.phase.name)
            self._sample()
            self._tick(slot, ADMIT, start)

    def _check_autograd(self, slot: Slot) -> None:
        """Autograd's mode belongs to the thread, so a phase that leaves it off would leave it off for everyone."""
        if not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
            raise RuntimeError(
                f"running {slot.phase.name!r}: it ended a tick with autograd switched off, or the whole step was run "
                "under no_grad. Switch it off only within a tick."
            )

    def _finish(self, slot: Slot, value: Any, start: Any) -> None:
        self.board.fill(slot, value)
        if self.memory is not None:
            self.board.spend(self.memory.spends(slot.phase.name))
            self.memory.end(slot.phase.name)
        self._sample()
        self._tick(slot, "end", start)  # after what leaves has left: it is in use until its phase has ended
        self.generator = None
        self.slots.pop(0)

    def _tick(self, slot: Slot, label: str, start: Any) -> None:
        self.recorder.tick(self.board.index, self.stage, slot, label, start)

    def _sample(self) -> None:
        with self.recorder.lock:  # also over the end of this look, which holds the step that another lane may spend
            self.recorder.sample(self.board.step)

    def close(self) -> None:
        """Stop a phase that is under way: it releases what it holds; or it ends whole, and then it has finished."""
        if self.generator is None:
            return
        start = self.recorder.mark(self.name)
        try:
            self.generator.throw(GeneratorExit)
        except GeneratorExit:
            self.generator = None
        except StopIteration as stop:
            self._finish(self.slots[0], stop.value, start)


def interleave(lanes: list[Lane]) -> None:
    """Give the lanes turns until all are done; a lane with share s gets s turns a round."""
    waiting: set[str] = set()
    while open_lanes := [lane for lane in lanes if not lane.done]:
        for lane in open_lanes:
            lane.credit += lane.slots[0].share
            while lane.credit >= 1 and not lane.done:
                lane.credit -= 1
                if lane.advance():
                    waiting.clear()
                else:
                    waiting.add(lane.name)
                    lane.credit = 0.0  # turns that it could not use are not saved up
        still = [lane for lane in open_lanes if not lane.done]
        if still and waiting.issuperset(lane.name for lane in still):
            who = ", ".join(f"{lane.name}: {lane.slots[0].phase.name}" for lane in still)
            raise RuntimeError(f"running a stage: every lane waits for another ({who})")


def threads(lanes: list[Lane]) -> None:
    """Run every lane in a thread of its own; the first error stops them all."""
    stop = threading.Event()
    # Waited for instead of the threads: an interrupt within `Thread.join` makes Python 3.11 take one that runs for ended.
    ended = [threading.Event() for _ in lanes]
    errors: list[BaseException] = []

    def work(lane: Lane, end: threading.Event) -> None:
        try:
            while not lane.done and not stop.is_set():
                if not lane.advance():
                    time.sleep(1e-4)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)
            stop.set()
        finally:
            end.set()

    workers = [
        threading.Thread(target=work, args=(lane, end), name=f"rollplex-{lane.name}")
        for lane, end in zip(lanes, ended, strict=True)
    ]
    try:
        with held_back():  # within `Thread.start` it would leave a thread that runs and is not known to
            for worker in workers:
                worker.start()
        for end in ended:
            end.wait()
    finally:
        stop.set()
        for worker, end in zip(workers, ended, strict=True):
            if worker.ident is not None:  # it was started
                end.wait()
                worker.join()
    if errors:
        raise errors[0]


EXECUTORS: dict[str, Callable[[list[Lane]], None]] = {"interleave": interleave, "threads": threads}

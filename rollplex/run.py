"""A run: a task, phases, a schedule and a trace. The loop over its steps is the user's own ``for``."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rollplex.board import Board
from rollplex.costs.measured import draw_of
from rollplex.costs.workload import Draw
from rollplex.execute import EXECUTORS, ExecutorName, execute
from rollplex.interrupts import held_back
from rollplex.machine import device_name
from rollplex.memory.arena import OutOfDeviceMemory
from rollplex.memory.memory import Memory
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.recorder import Recorder
from rollplex.schedule import Schedule, Timetable
from rollplex.schedules import Serial
from rollplex.step import Step
from rollplex.steps import Steps
from rollplex.task import Task
from rollplex.trace import Trace

if TYPE_CHECKING:
    from rollplex.advice import Advice
    from rollplex.compare import Comparison
    from rollplex.hardware import Device

ADVISED = 8
"""Newest steps whose lengths are kept, for advice."""


class Run:
    """Steps of a task under a schedule; it owns the trace and the step counter, and no tensor.

    With a ``memory``, everything lives within its budget and is on the device while it is used.
    ``for step in run.steps(50): ...`` trains; breaking off and going on later is safe.
    """

    def __init__(
        self,
        task: Task,
        phases: Sequence[Phase],
        schedule: Schedule | None = None,
        *,
        prompts: int = 8,
        seed: int = 0,
        executor: ExecutorName = "interleave",
        max_prompt_length: int | None = None,
        memory: Memory | None = None,
    ) -> None:
        if prompts < 1:
            raise ValueError(f"making a Run: prompts is {prompts}; it must be at least 1")
        if executor not in EXECUTORS:
            raise ValueError(f"making a Run: executor is {executor!r}; it must be one of {list(EXECUTORS)}")
        if isinstance(schedule, type):
            name = schedule.__name__
            raise ValueError(f"making a Run: schedule is the class {name}; give an object of it, schedule={name}()")
        self.task = task
        self.phases = tuple(phases)
        self.schedule: Schedule = Serial() if schedule is None else schedule
        self.prompts = prompts
        self.seed = seed
        self.executor: ExecutorName = executor
        self.max_prompt_length = max_prompt_length
        suffix = _suffix(self.phases)
        self.policy = suffix.policy
        self.next_index = 0
        self.last: Step | None = None
        """The newest step, complete or as far as an error let it get."""
        self.trace = Trace(device=device_name(self.policy.model.device))
        self.recorder = Recorder(self.trace, self.phases, self.policy.model.device)
        self._draws: deque[Draw] = deque(maxlen=ADVISED)
        self.timetable().check()
        self.memory = memory
        self.use(memory)

    def timetable(self) -> Timetable:
        """The phases as the schedule lays them out; print it to read it."""
        return self.schedule.timetable(self.phases)

    def steps(self, num: int) -> Steps:
        """The next ``num`` steps, each made when the loop asks for it."""
        if num < 0:
            raise ValueError(f"asking a run for {num} steps: it must be 0 or more")
        return Steps(run=self, num=num, iterable=self._steps(num))

    def step(self) -> Step:
        """Make the next step; one that is broken off is made again, unless its update was under way: then that is ended."""
        self.use(self.memory)  # from where another run of the same policy has taken it
        board, done = Board(self._begin()), False
        self.last = None  # what a broken-off attempt finished would lie beside what is now made again
        try:
            execute(self.timetable(), board, self.recorder, self.executor, self.memory)
            done = True
        except BaseException as error:
            # A notebook keeps the traceback of the last error, or interrupt, and with its frames all that the step had
            # on the device: within a budget there would be no room to go on.
            if self.memory is not None or isinstance(error, OutOfDeviceMemory):
                traceback.clear_frames(error.__traceback__)
            raise
        finally:
            with held_back():
                self.last = board.step
                del board  # which this frame would keep
                if done or self.policy.version != self.last.version:  # weights that have learned from it do so once
                    self.next_index += 1
                    self._draws.append(draw_of(self.last))
        return self.last

    def use(self, memory: Memory | None) -> None:
        """Go on within another memory, or without one: weights, gradients and optimizer move, and nothing else changes.

        All of it moves, or, where there is no room for all, nothing does.
        """
        # Policies before optimizers, whose masters may be the policy's own weights.
        phases = sorted(self.phases, key=lambda phase: isinstance(phase, Update))
        before = [phase.owner.memory if isinstance(phase, Prefix) else phase.memory for phase in phases]
        try:
            for phase in phases:
                phase.move_in(memory)
        except Exception:
            for phase, old in zip(phases, before, strict=True):
                phase.move_in(old)
            raise
        self.memory = memory
        self.recorder.use(None if memory is None else memory.arena)

    def compare(self, *schedules: Schedule, steps: int = 3) -> Comparison:
        """The next steps under this run's schedule and others, from the same state; see `rollplex.compare`."""
        from rollplex.compare import compare

        return compare(self, *(schedules if self.schedule in schedules else (self.schedule, *schedules)), steps=steps)

    def advise(self, *, device: str | Device = "H100", measured_on: Device | None = None) -> Advice:
        """What each schedule would do here and on a named device, by the costs of the last steps; see `rollplex.advice`.

        The very first step, which warms caches, is left out once there are others. ``measured_on`` says what this device
        is, where it is a GPU that the table of devices does not know.
        """
        from rollplex.advice import advise

        draws = list(self._draws)
        if not draws:
            raise ValueError("asking a run for advice: it has made no step yet. Make a few first, with run.steps(3).")
        if 1 < len(draws) == self.next_index:
            draws = draws[1:]
        return advise(self.trace, draws, self.policy.geometry, device=device, measured_on=measured_on)

    def _steps(self, num: int) -> Iterator[Step]:
        for _ in range(num):
            yield self.step()

    def _begin(self) -> Step:
        rows = self.task.rows(self.prompts, step=self.next_index)
        batch = self.policy.ingest.batch(
            rows, step=self.next_index, seed=self.seed, max_prompt_length=self.max_prompt_length
        )
        return Step(index=self.next_index, seed=self.seed, version=self.policy.version, prompts=batch)

    def __repr__(self) -> str:
        return f"Run({self.task.name}, {self.schedule.name}, next step {self.next_index}, {self.trace!r})"


def _suffix(phases: Sequence[Phase]) -> Suffix:
    found = [phase for phase in phases if isinstance(phase, Suffix)]
    if len(found) != 1:
        raise ValueError(f"making a Run: wanted one Suffix phase among {list(phases)}, found {len(found)}")
    if found[0].loss.needs_reference and all(phase.writes != "reference_prefix" for phase in phases):
        raise ValueError(
            f"making a Run: the loss has beta={found[0].loss.beta}, and no phase writes 'reference_prefix'. "
            "Add rx.Prefix(reference) to the phases, or use beta=0."
        )
    return found[0]

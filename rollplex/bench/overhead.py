"""What tick machinery and tracing cost: as many empty ticks through the same executor, over a real step's time.

Subtracting two noisy step times could not resolve one percent; the same number of ticks that do nothing can.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from rollplex.bench.floor import middle
from rollplex.bench.phases import phases
from rollplex.bench.workloads import WORKLOADS
from rollplex.board import Board
from rollplex.execute import execute
from rollplex.phases.phase import Phase, Tick
from rollplex.policy import Policy
from rollplex.recorder import Recorder
from rollplex.resource import Resource
from rollplex.run import Run
from rollplex.schedule import Slot, Stage, Timetable
from rollplex.schedules import Rollplex
from rollplex.step import Step
from rollplex.trace import Trace


class Empty(Phase):
    """A phase that has another's name, place and resources, and whose ticks do nothing."""

    def __init__(self, phase: Phase, num_ticks: int) -> None:
        self._phase = phase
        self._num_ticks = num_ticks

    @property
    def name(self) -> str:
        """The phase's."""
        return self._phase.name

    @property
    def writes(self) -> str:
        """The phase's."""
        return self._phase.writes

    @property
    def reads(self) -> tuple[Resource, ...]:
        """The phase's."""
        return self._phase.reads

    @property
    def mutates(self) -> tuple[Resource, ...]:
        """The phase's."""
        return self._phase.mutates

    def run(self, **fields: Any) -> Generator[Tick, None, Any]:
        """So many ticks."""
        for _ in range(self._num_ticks):
            yield "empty"
        return None


def bench(*, steps: int = 5) -> dict[str, Any]:
    """The share of a step on the default workload, under `Rollplex` and ``interleave``."""
    workload = WORKLOADS["default"]
    run = Run(workload.task, phases(workload, Policy.tiny()), Rollplex(), prompts=workload.prompts)
    list(run.steps(1 + steps))
    counted = run.trace.steps()[1:]
    step_s = middle([run.trace.step_s(step) for step in counted])
    last = [t.phase for t in run.trace.ticks if t.step == counted[-1]]
    counts = {phase.name: last.count(phase.name) for phase in run.phases}
    empty_s = middle([_empty(run, counts) for _ in range(20)])
    print(
        f"{sum(counts.values())} ticks cost {empty_s * 1e3:.2f} ms of a step of {step_s * 1e3:.0f} ms: {empty_s / step_s:.2%}"
    )
    return {
        "overhead_share": empty_s / step_s,
        "ticks": sum(counts.values()),
        "machinery_s": empty_s,
        "step_s": step_s,
    }


def _empty(run: Run, counts: dict[str, int]) -> float:
    """Seconds of a step of empty ticks."""
    assert run.last is not None
    blank = Step(index=0, seed=0, version=0, prompts=run.last.prompts)
    recorder = Recorder(Trace(), run.phases, run.policy.model.device)
    stages = tuple(
        Stage(
            name=stage.name,
            slots=tuple(
                Slot(phase=Empty(slot.phase, counts[slot.phase.name]), lane=slot.lane, takes=()) for slot in stage.slots
            ),
        )
        for stage in run.timetable().stages
    )
    start = time.perf_counter()
    execute(Timetable(name="Empty", stages=stages), Board(blank), recorder)
    return time.perf_counter() - start

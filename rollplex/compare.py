"""The same steps under several schedules, from the same state: how long each took, and that the numbers agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from tqdm.auto import tqdm

from rollplex.metrics import phase_family
from rollplex.phases.update import Update
from rollplex.run import Run
from rollplex.schedule import Schedule
from rollplex.trace import Trace

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What each schedule made of the same steps."""

    traces: Mapping[str, Trace]
    """Schedule name -> its measured trace."""
    difference: Mapping[str, float]
    """Schedule name -> largest difference of any weight to the first schedule's, after the last step."""

    def frame(self) -> pandas.DataFrame:
        """One row a schedule: median step time, its phases, the ratio to the first schedule, the difference."""
        import pandas

        first = next(iter(self.traces))
        base = self._step_s(first)
        rows = [
            {
                "schedule": name,
                "step_s": self._step_s(name),
                f"times_{first.lower()}": base / self._step_s(name),
                **self._phases_s(name),
                "max_weight_difference": self.difference[name],
            }
            for name in self.traces
        ]
        return pandas.DataFrame(rows).set_index("schedule")

    def timelines(self) -> go.Figure:
        """The last step under each schedule, on one time axis."""
        from rollplex.views.timeline import timelines

        return timelines({name: trace.select(trace.steps()[-1]) for name, trace in self.traces.items()})

    def _step_s(self, name: str) -> float:
        return median(self.traces[name].step_s(step) for step in self.traces[name].steps())

    def _phases_s(self, name: str) -> dict[str, float]:
        trace = self.traces[name]
        totals: dict[str, list[float]] = {}
        for step in trace.steps():
            of_step: dict[str, float] = {}
            for phase, seconds in trace.busy_s(step).items():
                key = f"{phase_family(phase)}_s"
                of_step[key] = of_step.get(key, 0.0) + seconds
            for key, seconds in of_step.items():
                totals.setdefault(key, []).append(seconds)
        return {key: median(values) for key, values in totals.items()}

    def _repr_html_(self) -> str:
        return self.frame().to_html(float_format=_four_digits)

    def __repr__(self) -> str:
        return self.frame().to_string(float_format=_four_digits)


def compare(run: Run, *schedules: Schedule, steps: int = 3) -> Comparison:
    """Run the next ``steps`` steps under each schedule, always from the run's present state, and put it back after.

    On a CPU nothing overlaps: the times say what each schedule computes, not what a GPU would gain.
    """
    if not schedules or steps < 1:
        raise ValueError(
            f"comparing schedules: found {len(schedules)} schedules and steps={steps}; give at least one of each"
        )
    names = _names(schedules)
    before = _State(run)
    traces: dict[str, Trace] = {}
    ends: dict[str, dict[str, torch.Tensor]] = {}
    progress = tqdm(total=len(schedules) * steps, desc="compare", unit="step", delay=2, leave=False)
    try:
        for name, schedule in zip(names, schedules, strict=True):
            before.restore()
            scratch = Run(
                run.task,
                run.phases,
                schedule,
                prompts=run.prompts,
                seed=run.seed,
                executor=run.executor,
                max_prompt_length=run.max_prompt_length,
                memory=run.memory,
            )
            scratch.next_index = run.next_index
            for _ in scratch.steps(steps):
                progress.update()
            traces[name], ends[name] = scratch.trace, run.policy.snapshot()
    finally:
        progress.close()
        before.restore()
    first = ends[names[0]]
    gaps = {n: max(float((w - first[k]).abs().max()) for k, w in end.items()) for n, end in ends.items()}
    return Comparison(traces=traces, difference=gaps)


def _names(schedules: Sequence[Schedule]) -> list[str]:
    """A schedule's own name, and its settings too where two share a name: every row of a table is told apart."""
    own = [schedule.name for schedule in schedules]
    names = [repr(s) if own.count(s.name) > 1 else s.name for s in schedules]
    if len(set(names)) < len(names):
        raise ValueError(f"comparing schedules: one is given twice, found {names}; give each once")
    return names


def _four_digits(value: float) -> str:
    return f"{value:.4g}"


class _State:
    """Weights, version and optimizer of a run, to start from again."""

    def __init__(self, run: Run) -> None:
        self.policy = run.policy
        self.version = run.policy.version
        self.weights = run.policy.snapshot()
        self.optimizers: list[tuple[Update, dict[str, Any]]] = [
            (phase, phase.optimizer.state_dict()) for phase in run.phases if isinstance(phase, Update)
        ]

    def restore(self) -> None:
        self.policy.restore(self.weights, self.version)
        for phase, state in self.optimizers:
            phase.optimizer.load_state_dict(state)

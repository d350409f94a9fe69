"""Simulated against measured on this machine: costs from one workload's trace predict the step time of others.

Each schedule is measured on three workloads of the shipped model; costs come from the traces of a *different* workload.
On a CPU all lanes take turns on one host thread, and so do they in the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rollplex.costs.geometry import Geometry
from rollplex.costs.measured import Measured, draw_of
from rollplex.costs.workload import Draw
from rollplex.interference import ONE_PROCESSOR
from rollplex.schedule import Schedule
from rollplex.schedules import OnePrefill, Serial, Streamed
from rollplex.simulate import Job, simulate

if TYPE_CHECKING:
    from rollplex.run import Run

CASES: dict[str, dict[str, Any]] = {
    "short": {"visual": False, "prompts": 4, "max_new_tokens": 32},
    "long": {"visual": False, "prompts": 4, "max_new_tokens": 64},
    "input_heavy": {"visual": True, "prompts": 4, "max_new_tokens": 32},
}
"""Workload -> its sizes; ``visual``: prompts of 500 visual tokens."""
SOURCE = {"short": "long", "long": "short", "input_heavy": "long"}
"""Workload -> the one whose trace its costs come from."""
APART = 1.05
"""Schedules whose measured steps are closer than this are not ranked: a step's own noise is as large."""
SCHEDULES: tuple[Schedule, ...] = (Serial(), OnePrefill(), Streamed())


@dataclass(frozen=True, kw_only=True)
class Row:
    """One workload under one schedule."""

    workload: str
    """Which workload."""
    schedule: str
    """Which schedule."""
    measured_s: float
    """Median measured step."""
    predicted_s: float
    """Simulated step."""

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.predicted_s / self.measured_s - 1


def check(repeats: int = 5) -> dict[str, Any]:
    """Measure, simulate, print; ``passed`` if every step is within 10 % and every ranking right."""
    measured: dict[tuple[str, str], list[float]] = {}
    lengths: dict[tuple[str, str], list[Draw]] = {}
    runs = {(name, schedule.name): _run(name, schedule) for name in CASES for schedule in SCHEDULES}
    for run in runs.values():
        run.step()  # the first step warms caches and allocators
    for _ in range(repeats):
        for key, run in runs.items():  # in turn, so that a slow minute of the machine hits all alike
            step = run.step()
            measured.setdefault(key, []).append(run.trace.step_s(step.index))
            lengths.setdefault(key, []).append(draw_of(step))
    rows: list[Row] = []
    geometry = _geometry()
    for name in CASES:
        keys = [(SOURCE[name], schedule.name) for schedule in SCHEDULES]
        costs = Measured.from_traces([(runs[key].trace, lengths[key]) for key in keys], geometry)
        for schedule in SCHEDULES:
            key = name, schedule.name
            seconds = predict(costs, schedule, lengths[key])
            rows.append(
                Row(workload=name, schedule=schedule.name, measured_s=median(measured[key]), predicted_s=seconds)
            )
    for row in rows:
        print(
            f"{row.workload:12s} {row.schedule:11s} measured {row.measured_s:.3f} s, predicted {row.predicted_s:.3f} s, "
            f"{row.error:+.1%}"
        )
    ranked = {name: _ranking(rows, name) for name in CASES}
    print(*(f"{name}: ranking {'right' if right else 'wrong'}" for name, right in ranked.items()), sep="; ")
    largest = max(abs(row.error) for row in rows)
    return {
        "rows": [{**vars(row), "error": row.error} for row in rows],
        "ranking_right": ranked,
        "largest_error": largest,
        "passed": largest <= 0.10 and all(ranked.values()),
    }


def predict(costs: Measured, schedule: Schedule, draws: list[Draw]) -> float:
    """Median simulated step of some steps' lengths, all lanes on one processor."""
    from rollplex.scenario import layout

    table = layout(schedule)
    times: list[float] = []
    for draw in draws:
        job = Job(timetable=table, costs=costs, workload=[draw])
        times.append(simulate(job, interference=ONE_PROCESSOR).step_s())
    return median(times)


def _ranking(rows: list[Row], name: str) -> bool:
    """Whether every two schedules that differ by more than ``APART`` when measured are predicted in the same order."""
    mine = [row for row in rows if row.workload == name]
    return all(
        slow.predicted_s > fast.predicted_s
        for slow in mine
        for fast in mine
        if slow.measured_s > APART * fast.measured_s
    )


def _geometry() -> Geometry:
    import rollplex

    return Geometry.from_folder(Path(rollplex.__file__).parent / "assets" / "tiny-qwen2_5_vl", dtype_bytes=4)


def _run(name: str, schedule: Schedule) -> Run:
    from rollplex.losses import GRPO
    from rollplex.phases.decode import Decode
    from rollplex.phases.prefix import Prefix
    from rollplex.phases.reward import Reward
    from rollplex.phases.suffix import Suffix
    from rollplex.phases.update import Update
    from rollplex.policy import Policy, Reference
    from rollplex.run import Run
    from rollplex.tasks import Digits

    case = CASES[name]
    task = Digits.input_heavy(seed=0) if case["visual"] else Digits(seed=0)
    policy = Policy.tiny()
    reference = Reference(policy)
    import torch

    lengths = torch.full((case["prompts"], 8), case["max_new_tokens"])
    decode = Decode(policy.engine(), group=8, max_new_tokens=case["max_new_tokens"], lengths=lengths)
    phases = [
        Prefix(policy),
        Prefix(reference),
        decode,
        Reward(task),
        Suffix(policy, reference, loss=GRPO(beta=0.04)),
        Update(policy, lr=1e-6),
    ]
    return Run(task, phases, schedule=schedule, prompts=case["prompts"])

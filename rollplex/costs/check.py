"""Simulated against measured on this machine: costs from one workload's traces predict the step times of others.

Three workloads of the shipped model are measured under three schedules. Their costs come from a fourth, a calibration with
pictures, numbers of prompts and responses of several sizes, none of them a size of the three. On a CPU all lanes take turns
on one host thread, and so do they in the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rollplex.bounds import COUNT, expect
from rollplex.costs.geometry import Geometry
from rollplex.costs.measured import Measured, draw_of
from rollplex.costs.workload import Draw
from rollplex.interference import ONE_PROCESSOR
from rollplex.scenario import layout
from rollplex.schedule import Schedule
from rollplex.schedules import OnePrefill, Serial, Streamed
from rollplex.simulate import Job, simulate

if TYPE_CHECKING:
    from rollplex.run import Run


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a step has to do."""

    grid: tuple[int, int]
    """Cells of a picture, four visual tokens each."""
    prompts: int
    """Prompts of a step, with eight responses each."""
    tokens: int
    """Length of every response."""


CASES = {
    "short": Size(grid=(4, 4), prompts=4, tokens=32),
    "long": Size(grid=(4, 4), prompts=4, tokens=64),
    "input_heavy": Size(grid=(11, 12), prompts=4, tokens=32),
}
"""Workload -> its size."""
CALIBRATION = tuple(
    Size(grid=grid, prompts=prompts, tokens=tokens)
    for grid, tokens, numbers in (
        ((2, 2), 24, (2, 8)),
        ((3, 4), 40, (2, 6)),
        ((6, 8), 16, (1, 4)),
        ((9, 9), 40, (1, 3)),
    )
    for prompts in numbers
)
"""The workload that costs come from: 16 to 324 visual tokens."""
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
    """Median simulated step."""
    error: float
    """Median over rounds of simulated over measured, less one. Within a round, because a machine's speed drifts."""


def check(repeats: int = 12) -> dict[str, Any]:
    """Measure, simulate, print; ``passed`` if every step is within 10 % and every ranking right."""
    expect("checking simulated against measured steps", {"repeats": repeats}, repeats=COUNT)
    runs = {(size, s): _run(size, s) for size in (*CALIBRATION, *CASES.values()) for s in SCHEDULES}
    for run in runs.values():
        run.step()  # the first step warms caches and allocators
    rounds = [_round(runs) for _ in range(repeats)]
    rows: list[Row] = []
    for name in CASES:
        for schedule in SCHEDULES:
            predicted, measured = zip(*(one[name, schedule] for one in rounds), strict=True)
            error = median(p / m for p, m in zip(predicted, measured, strict=True)) - 1
            row = Row(
                workload=name,
                schedule=schedule.name,
                measured_s=median(measured),
                predicted_s=median(predicted),
                error=error,
            )
            rows.append(row)
    for row in rows:
        print(
            f"{row.workload:12s} {row.schedule:11s} measured {row.measured_s:.3f} s, predicted {row.predicted_s:.3f} s, "
            f"{row.error:+.1%}"
        )
    ranked = {name: _ranking(rows, name) for name in CASES}
    print(*(f"{name}: ranking {'right' if right else 'wrong'}" for name, right in ranked.items()), sep="; ")
    largest = max(abs(row.error) for row in rows)
    return {
        "rows": [vars(row) for row in rows],
        "ranking_right": ranked,
        "largest_error": largest,
        "passed": largest <= 0.10 and all(ranked.values()),
    }


def _round(runs: dict[tuple[Size, Schedule], Run]) -> dict[tuple[str, Schedule], tuple[float, float]]:
    """One more step of every run; simulated and measured seconds of each case, costs from the calibration's steps."""
    steps = {key: run.step() for key, run in runs.items()}
    draws = {key: draw_of(step) for key, step in steps.items()}
    seen = [(runs[size, s].trace, [draws[size, s]]) for size in CALIBRATION for s in SCHEDULES]
    costs = Measured.from_traces(seen, _geometry())
    return {
        (name, s): (predict(costs, s, draws[size, s]), runs[size, s].trace.step_s(steps[size, s].index))
        for name, size in CASES.items()
        for s in SCHEDULES
    }


def predict(costs: Measured, schedule: Schedule, draw: Draw) -> float:
    """Simulated step of these lengths, all lanes on one processor."""
    job = Job(timetable=layout(schedule), costs=costs, workload=[draw])
    return simulate(job, interference=ONE_PROCESSOR).step_s()


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


def _run(size: Size, schedule: Schedule) -> Run:
    import torch

    from rollplex.losses import GRPO
    from rollplex.phases.decode import Decode
    from rollplex.phases.prefix import Prefix
    from rollplex.phases.reward import Reward
    from rollplex.phases.suffix import Suffix
    from rollplex.phases.update import Update
    from rollplex.policy import Policy, Reference
    from rollplex.run import Run
    from rollplex.tasks import Digits

    task = Digits(seed=0, grid=size.grid)
    policy = Policy.tiny()
    reference = Reference(policy)
    lengths = torch.full((size.prompts, 8), size.tokens)
    decode = Decode(policy.engine(), group=8, max_new_tokens=size.tokens, lengths=lengths)
    phases = [
        Prefix(policy),
        Prefix(reference),
        decode,
        Reward(task),
        Suffix(policy, reference, loss=GRPO(beta=0.04)),
        Update(policy, lr=1e-6),
    ]
    return Run(task, phases, schedule=schedule, prompts=size.prompts)

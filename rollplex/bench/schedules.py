"""Step times under each schedule, from the same weights, beside the step's floating-point floor."""

from __future__ import annotations

from typing import Any

import torch
from tqdm import tqdm

from rollplex.bench.floor import matrix_rate, middle, step_operations
from rollplex.bench.phases import phases
from rollplex.bench.workloads import WORKLOADS, Workload
from rollplex.compare import compare
from rollplex.metrics import metrics
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.run import Run
from rollplex.schedule import Schedule
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed
from rollplex.step import Step
from rollplex.trace import Trace

SCHEDULES: dict[str, Schedule] = {
    "Serial": Serial(),
    "Rollplex": Rollplex(),
    "OnePrefill": OnePrefill(),
    "Streamed": Streamed(handoff=True),
}


def bench(*, rounds: int = 7) -> dict[str, Any]:
    """Median over rounds; in each, every schedule runs the same step from the same state, one after another.

    ``ratio_to_serial`` is the median of the rounds' own ratios, ``floor_share`` the floor's time over the step's.
    """
    rate = matrix_rate()
    workloads: dict[str, Any] = {}
    with tqdm(total=len(WORKLOADS) * (rounds + 1), desc="bench schedules", unit="round") as progress:
        for workload in WORKLOADS.values():
            workloads[workload.name] = _workload(workload, rounds, rate, progress)
    for name, of_schedule in workloads.items():
        for schedule, row in of_schedule.items():
            parts = ", ".join(f"{k[:-2]} {row[k]:.3f}" for k in ("decode_s", "prefix_s", "suffix_s", "update_s"))
            print(
                f"{name:>12} {schedule:>11}: {row['step_s']:.3f} s ({parts}), {row['ratio_to_serial']:.2f}x Serial, "
                f"{row['floor_share']:.0%} of the floor's speed"
            )
    return {
        "workloads": workloads,
        "matrix_flops_per_s": rate,
        "threads": torch.get_num_threads(),
        "note": "Streamed with handoff=True. CPU, one host thread gives the lanes turns: nothing overlaps.",
    }


def _workload(workload: Workload, rounds: int, rate: float, progress: tqdm[Any]) -> dict[str, Any]:
    run = Run(workload.task, phases(workload, Policy.tiny()), prompts=workload.prompts)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in SCHEDULES}
    for index in range(rounds + 1):  # the first warms up
        made = compare(run, *SCHEDULES.values(), steps=1)
        if index:
            for name, trace in made.traces.items():
                rows[name].append(_times(trace))
        progress.update()
    step = run.step()
    floor_s = _operations(run, step) / rate
    result = {}
    for name, found in rows.items():
        middles = {key: middle([row[key] for row in found]) for key in found[0]}
        ratios = [s["step_s"] / r["step_s"] for s, r in zip(rows["Serial"], found, strict=True)]
        result[name] = {**middles, "ratio_to_serial": middle(ratios), "floor_share": floor_s / middles["step_s"]}
    return result


def _times(trace: Trace) -> dict[str, float]:
    """Phase times of a trace's only step, under the names of the JSON."""
    (index,) = trace.steps()
    busy = trace.busy_s(index)
    prefix = sum(seconds for phase, seconds in busy.items() if phase.startswith("prefix"))
    blank = Step(index=index, seed=0, version=0, prompts=PromptBatch(prompts=()))
    hidden = metrics(blank, trace).get("overlap/hidden_prefix_s", 0.0)
    return {
        "step_s": trace.step_s(index),
        "decode_s": busy["decode"],
        "prefix_s": prefix,
        "suffix_s": busy["suffix"],
        "update_s": busy["update"],
        "hidden_prefix_s": hidden,
    }


def _operations(run: Run, step: Step) -> float:
    assert step.rollout is not None
    lengths = torch.stack([group.lengths for group in step.rollout.groups])
    return step_operations(run.policy.model, step.prompts.prompts, lengths, reference=step.reference_prefix is not None)

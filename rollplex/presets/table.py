"""Every schedule and every published system on one workload and one cluster: ``rollplex plan simulate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from rollplex.costs.geometry import geometry
from rollplex.costs.workload import Workload
from rollplex.hardware import cluster
from rollplex.interference import H800_32B
from rollplex.presets.preset import default_placement, step_s
from rollplex.presets.systems import PRESETS
from rollplex.scenario import Scenario, layout
from rollplex.schedule import Schedule
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed
from rollplex.schedules_pools import (
    BoundedStaleness,
    Disaggregated,
    OneStepOff,
    Streaming,
    oversampling,
    partial_rollout,
    tail_batching,
)
from rollplex.simulate import Simulation

SCHEDULES: tuple[Schedule, ...] = (
    Serial(),
    Rollplex(),
    OnePrefill(),
    Streamed(),
    Streamed(handoff=True),
    Disaggregated(),
    Disaggregated(early_prefix=True),
    OneStepOff(),
    BoundedStaleness(2),
    Streaming(),
    *(wrap(inner) for wrap in (partial_rollout, oversampling, tail_batching) for inner in (Serial(), Rollplex())),
)
"""What is compared; the first is what ratios refer to."""
NUM_STEPS = 6
SKIP = 2
"""Steps simulated, and those of them that fill a pipeline and are left out."""


def scenario(
    model: str = "Qwen2.5-VL-32B",
    device: str = "H800",
    nodes: int = 4,
    prompt_tokens: int = 2048,
    response_tokens: int = 400,
) -> Scenario:
    """The scenario of the command: the paper's model and cluster, with a workload in the middle of its range."""
    return Scenario(
        geometry=geometry(model),
        cluster=cluster(device, num_nodes=nodes),
        workload=Workload(prompt_tokens=prompt_tokens, response_tokens=response_tokens),
        interference=H800_32B,
    )


def simulate_all(
    model: str = "Qwen2.5-VL-32B",
    device: str = "H800",
    nodes: int = 4,
    prompt_tokens: int = 2048,
    response_tokens: int = 400,
) -> dict[str, Any]:
    """Simulate every schedule and preset on the same workload and cluster, and print the two tables."""
    case = scenario(model, device, nodes, prompt_tokens, response_tokens)
    placement = default_placement(case)
    schedules: dict[str, dict[str, Any]] = {}
    for schedule in SCHEDULES:
        made = case.simulate(schedule, placement, num_steps=NUM_STEPS)
        table = layout(schedule)
        schedules[label(schedule)] = {
            **figures(made),
            "staleness": table.staleness,
            "on_policy": table.on_policy,
            "synchronous": table.synchronous,
        }
    presets: dict[str, dict[str, Any]] = {}
    for name, preset in PRESETS.items():
        made, table = preset.simulate(case, num_steps=NUM_STEPS), preset.timetable
        effect = preset.effect(replace(case), preset)
        presets[name] = {
            "arxiv": preset.arxiv,
            "schedule": table.name,
            "mapping": preset.mapping,
            "left_out": preset.left_out,
            **figures(made),
            "staleness": table.staleness,
            "on_policy": table.on_policy,
            "synchronous": table.synchronous,
            "effect": asdict(effect),
        }
    serial = schedules["Serial"]["step_s"]
    for row in (*schedules.values(), *presets.values()):
        row["ratio_to_serial"] = serial / row["step_s"]
    work = case.workload
    print(
        f"Simulated, not measured: {model}, {nodes * 8} x {device}, {work.prompts} prompts x {work.group} responses, median "
        f"{work.prompt_tokens:.0f} + {work.response_tokens:.0f} tokens\n"
    )
    _print("schedule", schedules)
    print()
    _print("system", presets)
    return {
        "kind": "predicted",
        "model": model,
        "cluster": repr(case.cluster),
        "workload": asdict(case.workload),
        "efficiency": asdict(case.efficiency),
        "interference": asdict(case.interference),
        "schedules": schedules,
        "presets": presets,
        "passed": all(row["effect"]["holds"] for row in presets.values()),
    }


def figures(made: Simulation) -> dict[str, Any]:
    """The numbers of one simulation that tables show."""
    return {
        "step_s": step_s(made, SKIP),
        "idle_share": made.idle_share,
        "peak_gib": max(made.peak_bytes.values()) / 2**30,
        "peak_gib_by_pool": {pool: num / 2**30 for pool, num in made.peak_bytes.items()},
    }


def label(schedule: Schedule) -> str:
    """A schedule's name, told apart where one class makes two timetables."""
    return "Streamed+handoff" if isinstance(schedule, Streamed) and schedule.handoff else schedule.name


def _print(what: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"{what:22s} {'step s':>8s} {'to serial':>9s} {'idle':>6s} {'peak GiB':>9s}  staleness, policy")
    for name, row in rows.items():
        policy = "on-policy" if row["on_policy"] else "off-policy"
        print(
            f"{name:22s} {row['step_s']:8.1f} {row['ratio_to_serial']:9.2f} {row['idle_share']:6.0%} "
            f"{row['peak_gib']:9.1f}  {row['staleness']}, {policy}"
            + (f"; {'effect holds' if row['effect']['holds'] else 'EFFECT MISSING'}" if "effect" in row else "")
        )
    print()

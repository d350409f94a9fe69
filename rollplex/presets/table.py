"""Every schedule and every published system on one workload and one cluster: ``rollplex plan simulate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollplex.costs.geometry import geometry
from rollplex.costs.placement import Placement
from rollplex.costs.workload import Workload
from rollplex.hardware import Device, cluster
from rollplex.interference import H800_32B
from rollplex.presets.preset import step_s
from rollplex.presets.systems import PRESETS
from rollplex.scenario import Scenario
from rollplex.schedule import Schedule, Timetable
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
        workload=Workload(
            prompt_tokens=prompt_tokens,
            max_prompt_tokens=max(8192, prompt_tokens),
            response_tokens=response_tokens,
            max_response_tokens=max(2048, 4 * response_tokens),
        ),
        interference=H800_32B,
    )


def simulate_all(
    model: str = "Qwen2.5-VL-32B",
    device: str = "H800",
    nodes: int = 4,
    prompt_tokens: int = 2048,
    response_tokens: int = 400,
) -> dict[str, Any]:
    """Simulate every schedule and preset on the same workload and cluster, and print the two tables.

    ``passed`` says whether every preset shows its effect where it must: on the command's own scenario. On another one it
    may not, which is an answer and no failure.
    """
    case = scenario(model, device, nodes, prompt_tokens, response_tokens)
    placement = case.usual_placement()
    schedules: dict[str, dict[str, Any]] = {}
    for schedule in SCHEDULES:
        made = case.simulate(schedule, placement, num_steps=NUM_STEPS)
        schedules[label(schedule)] = figures(made, case.layout(schedule), case.cluster.device)
    presets: dict[str, dict[str, Any]] = {}
    for name, preset in PRESETS.items():
        made, table = preset.simulate(case, num_steps=NUM_STEPS), case.layout(preset.schedule)
        presets[name] = {
            "arxiv": preset.arxiv,
            "schedule": table.name,
            "mapping": preset.mapping,
            "left_out": preset.left_out,
            **figures(made, table, case.cluster.device),
            "effect": asdict(preset.effect(case, preset)),
        }
    serial = schedules["Serial"]["step_s"]
    for row in (*schedules.values(), *presets.values()):
        row["ratio_to_serial"] = serial / row["step_s"]
    _print(case, placement, schedules, presets)
    result = {
        "kind": "predicted",
        "model": case.geometry.name,
        "cluster": repr(case.cluster),
        "placement": asdict(placement),
        "workload": asdict(case.workload),
        "efficiency": asdict(case.efficiency),
        "interference": asdict(case.interference),
        "schedules": schedules,
        "presets": presets,
    }
    if case == scenario():
        result["passed"] = all(row["effect"]["holds"] for row in presets.values())
    return result


def figures(made: Simulation, table: Timetable, device: Device) -> dict[str, Any]:
    """What tables show of one simulation."""
    peak = max(made.peak_bytes.values())
    return {
        "step_s": step_s(made, SKIP),
        "idle_share": made.idle_share,
        "peak_gib": peak / 2**30,
        "fits": peak <= device.usable_bytes,
        "peak_gib_by_pool": {pool: num / 2**30 for pool, num in made.peak_bytes.items()},
        "staleness": table.staleness,
        "on_policy": table.on_policy,
        "synchronous": table.synchronous,
    }


def label(schedule: Schedule) -> str:
    """A schedule's name, told apart where one class makes two timetables."""
    return "Streamed+handoff" if isinstance(schedule, Streamed) and schedule.handoff else schedule.name


def _print(
    case: Scenario,
    placement: Placement,
    schedules: Mapping[str, Mapping[str, Any]],
    presets: Mapping[str, Mapping[str, Any]],
) -> None:
    work = case.workload
    print(
        f"Simulated, not measured: {case.geometry.name}, {case.devices}, TP {placement.train_tp} over {placement.rollout_tp}, "
        f"{work.prompts} prompts x {work.group} responses, median {work.prompt_tokens:.0f} + {work.response_tokens:.0f} tokens"
    )
    for what, rows in (("schedule", schedules), ("system", presets)):
        print(f"\n{what:22s} {'step s':>8s} {'to serial':>9s} {'idle':>6s} {'peak GiB':>9s}  staleness, policy")
        for name, row in rows.items():
            policy = "on-policy" if row["on_policy"] else "off-policy"
            effect = (
                f"; its effect {'shows' if row['effect']['holds'] else 'DOES NOT SHOW'} here" if "effect" in row else ""
            )
            print(
                f"{name:22s} {row['step_s']:8.1f} {row['ratio_to_serial']:9.2f} {row['idle_share']:6.0%} "
                f"{row['peak_gib']:9.1f}  {row['staleness']}, {policy}{'' if row['fits'] else ', DOES NOT FIT'}{effect}"
            )

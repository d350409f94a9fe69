"""One prefill or two: where handing the actor's boundary to decode beats running both prefills, and where it cannot be.

`OnePrefill` saves the rollout's prefill and a copy of the prompt's KV, but decode waits for the actor's prefix;
`Rollplex` hides that prefix behind decode, and pays for the prefill. This file sweeps the two over a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rollplex.costs.geometry import GEOMETRIES
from rollplex.costs.placement import Placement
from rollplex.costs.roofline import Efficiency
from rollplex.costs.workload import Workload
from rollplex.hardware import Cluster
from rollplex.interference import H800_32B, Interference
from rollplex.scenario import Scenario
from rollplex.schedules import OnePrefill, Rollplex


@dataclass(frozen=True, kw_only=True)
class Point:
    """One cell of the grid."""

    model: str
    """Name of the model."""
    train_tp: int
    """Tensor-parallel degree of the actor."""
    rollout_tp: int
    """Of an engine."""
    prompt_tokens: int
    """Median prompt."""
    response_tokens: int
    """Median response."""
    gain: float
    """Rollplex's simulated step over OnePrefill's: above 1 one prefill is faster."""
    why_not: str = ""
    """Why one prefill cannot be used; empty where it can."""
    kind: Literal["simulated"] = "simulated"
    """What the gain is."""


def why_not(
    placement: Placement,
    *,
    same_pool: bool = True,
    train_type: str = "bf16",
    rollout_type: str = "bf16",
    peak_bytes: float = 0.0,
    limit_bytes: float = float("inf"),
) -> str:
    """Why the actor's boundary cannot be decode's prompt KV; empty where it can.

    >>> why_not(Placement(train_tp=8, rollout_tp=4), rollout_type="fp8")
    "the engine computes in fp8 and the actor in bf16: its prefix is not the engine's prefill"
    """
    if train_type != rollout_type:
        return f"the engine computes in {rollout_type} and the actor in {train_type}: its prefix is not the engine's prefill"
    if not same_pool:
        return "the engine has devices of its own: every prompt's keys and values would cross the network"
    if placement.train_tp % placement.rollout_tp:
        return f"training cuts heads {placement.train_tp} ways and the engine {placement.rollout_tp}: the pieces do not nest"
    if peak_bytes > limit_bytes:
        return (
            f"every boundary is there before decode starts: {peak_bytes / 2**30:.1f} of {limit_bytes / 2**30:.1f} GiB"
        )
    return ""


def grid(
    cluster: Cluster,
    *,
    models: Sequence[str] = ("Qwen2.5-VL-7B", "Qwen2.5-VL-32B"),
    degrees: Sequence[tuple[int, int]] = ((8, 8), (8, 4), (4, 4), (4, 2)),
    prompts: Sequence[int] = (512, 2048, 8192),
    responses: Sequence[int] = (64, 256, 1024),
    efficiency: Efficiency | None = None,
    interference: Interference = H800_32B,
) -> list[Point]:
    """`OnePrefill` against `Rollplex` at every combination; degrees are (training, rollout), where the heads divide so."""
    made: list[Point] = []
    for model in models:
        for train_tp, rollout_tp in degrees:
            if not all(map(GEOMETRIES[model].can_cut, (train_tp, rollout_tp))):
                continue
            placement = Placement(train_tp=train_tp, rollout_tp=rollout_tp)
            for prompt in prompts:
                for response in responses:
                    case = Scenario(
                        geometry=GEOMETRIES[model],
                        cluster=cluster,
                        workload=Workload(prompt_tokens=prompt, response_tokens=response),
                        efficiency=efficiency or Efficiency(),
                        interference=interference,
                    )
                    one, two = (case.simulate(schedule, placement) for schedule in (OnePrefill(), Rollplex()))
                    reason = why_not(
                        placement,
                        peak_bytes=max(one.peak_bytes.values()),
                        limit_bytes=cluster.device.usable_bytes,
                    )
                    made.append(
                        Point(
                            model=model,
                            train_tp=train_tp,
                            rollout_tp=rollout_tp,
                            prompt_tokens=prompt,
                            response_tokens=response,
                            gain=two.step_s() / one.step_s(),
                            why_not=reason,
                        )
                    )
    return made

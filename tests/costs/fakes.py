"""A measured trace at known rates, small enough to check by hand."""

from __future__ import annotations

from rollplex.costs.decoding import living
from rollplex.costs.geometry import Geometry
from rollplex.costs.measured import Measured
from rollplex.costs.work import prefix_work, suffix_work, total
from rollplex.costs.workload import Draw
from rollplex.trace import Tick, Trace


def written(costs: Measured, draw: Draw, *, responses: int = 4) -> Trace:
    """A trace as a live run would write it, at known rates, with so many responses in a suffix microbatch."""
    geometry: Geometry = costs.geometry
    microbatches = draw.responses.size // responses
    forward = total(prefix_work(geometry, draw))
    suffix = total(suffix_work(geometry, draw)).part(1 / microbatches, passes=1.0)
    spans: list[tuple[str, str, float]] = [
        ("decode", "layer 0", costs.prefixes["prefill"].seconds(forward)),
        ("prefix(policy)", "layer 0", costs.prefixes["policy_prefix"].seconds(forward)),
        ("prefix(reference)", "layer 0", costs.prefixes["reference_prefix"].seconds(forward)),
        ("reward", "group 0", costs.reward_s * draw.num_prompts),
        *[("suffix", f"{responses} responses", costs.suffix.seconds(suffix))] * microbatches,
        ("suffix", "layer 0", costs.backward.seconds(forward)),
    ]
    rows, context = living(draw, 20)
    spans += [
        ("decode", f"token {t}", costs.speed.fixed_s + costs.speed.row_s * r + costs.speed.context_s * c)
        for t, (r, c) in enumerate(zip(rows, context, strict=True))
    ]
    spans += [("update", "adamw", costs.update_s), ("update", "end", 0.0)]
    trace, now = Trace(schedules={0: "Serial"}), 0.0
    for phase, name, length in spans:
        trace.ticks.append(Tick(0, "s", "train", phase, name, now, now + length))
        now += length
    return trace

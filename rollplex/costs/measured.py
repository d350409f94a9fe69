"""Costs from a measured trace: rates of one workload, so that another workload, schedule or device can be predicted.

Each kind of work gets a rate: seconds for an operation of prompt forwards, of prefix backwards, of suffixes; seconds of a
decode iteration as a fixed part, a part for each row and a part for each token of context. Rates are medians or fits over
the trace's steps; what the trace does not show (a prefill, say) is taken from the nearest kind that it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy
from scipy.optimize import nnls

from rollplex.costs.costs import Order, Piece
from rollplex.costs.decoding import Speed, decode_pieces, living
from rollplex.costs.geometry import Geometry
from rollplex.costs.workload import Draw
from rollplex.step import Step
from rollplex.trace import Tick, Trace

SUFFIX_PASSES = 4.0
"""Forwards' worth of a suffix with a reference: two forwards, and a backward that is two more."""
BACKWARD_PASSES = 2.0
"""Forwards' worth of a backward pass."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Rates of one device for one model."""

    geometry: Geometry
    """The model that was measured."""
    prefix_s_per_flop: dict[str, float]
    """Field of a prefix, or ``"prefill"`` -> seconds for an operation."""
    backward_s_per_flop: float
    """Of prefix backward passes."""
    suffix_s_per_flop: float
    """Of suffixes, forwards and backward together."""
    speed: Speed
    """Of decoding."""
    reward_s: float
    """A group's rewards."""
    update_s: float
    """The optimizer."""
    scaled: dict[str, float] = field(default_factory=dict)
    """Field -> factor, for another device."""

    @classmethod
    def from_trace(cls, trace: Trace, steps: Sequence[Step] | Sequence[Draw], geometry: Geometry) -> Measured:
        """Rates from the traced steps; give the steps themselves, whose lengths say how much work there was."""
        draws = [step if isinstance(step, Draw) else draw_of(step) for step in steps]
        indices = trace.steps()[-len(draws) :]
        if len(indices) < len(draws):
            raise ValueError(f"reading costs from a trace: it has {len(indices)} steps, and {len(draws)} were given")
        pairs = list(zip(indices, draws, strict=True))
        return _rates(trace, pairs, geometry)

    def on(self, *, compute: float = 1.0, memory: float = 1.0) -> Measured:
        """The same model on another device, so many times as fast in arithmetic and in memory."""
        if compute <= 0 or memory <= 0:
            raise ValueError(f"scaling costs: a device is {compute} and {memory} times as fast; both must be positive")
        return replace(
            self,
            prefix_s_per_flop={name: rate / compute for name, rate in self.prefix_s_per_flop.items()},
            backward_s_per_flop=self.backward_s_per_flop / compute,
            suffix_s_per_flop=self.suffix_s_per_flop / compute,
            speed=replace(
                self.speed,
                fixed_s=self.speed.fixed_s / memory,
                row_s=self.speed.row_s / memory,
                context_s=self.speed.context_s / memory,
            ),
            update_s=self.update_s / memory,
        )

    def pieces(self, order: Order) -> list[Piece]:
        """The work of one phase, at the measured rates."""
        draw = order.draw
        match order.field:
            case "rollout":
                rate = 0.0 if order.handoff else self.prefix_s_per_flop["prefill"]
                prefill = numpy.array([rate * f for f in prefix_flops(self.geometry, draw)])
                return decode_pieces(draw, prefill, 1, self.speed)
            case "policy_prefix" | "reference_prefix":
                rate = self.prefix_s_per_flop[order.field]
                return [Piece(f"prompt {i}", rate * f) for i, f in enumerate(prefix_flops(self.geometry, draw))]
            case "rewards":
                return [Piece(f"group {i}", self.reward_s, "host", (i,), i) for i in range(draw.num_prompts)]
            case "suffix":
                forward = prefix_flops(self.geometry, draw)
                return [
                    Piece(
                        f"group {i}",
                        self.suffix_s_per_flop * SUFFIX_PASSES * f + self.backward_s_per_flop * BACKWARD_PASSES * back,
                        part=i,
                    )
                    for i, (f, back) in enumerate(zip(suffix_flops(self.geometry, draw), forward, strict=True))
                ]
            case "update":
                return [Piece("adamw", self.update_s)]
            case other:
                raise ValueError(f"costing a phase that writes {other!r}: a trace of one pool does not show it")


def draw_of(step: Step) -> Draw:
    """The lengths of a finished step."""
    if step.rollout is None:
        raise ValueError(f"reading the lengths of step {step.index}: it has no rollout")
    prompts = numpy.array([prompt.length for prompt in step.prompts])
    patches = sum(
        int(grid.prod(-1).sum()) for p in step.prompts for grid in (p.image_grid_thw, p.video_grid_thw) if grid.numel()
    )
    lengths = numpy.stack([group.lengths.numpy() for group in step.rollout.groups])
    return Draw(prompts=prompts, responses=lengths, visual_share=patches / 4 / float(prompts.sum()))


def prefix_flops(geometry: Geometry, draw: Draw) -> list[float]:
    """Operations of a forward over each prompt."""
    return [
        geometry.text_flops(float(p), float(p) ** 2 / 2) + geometry.vision_flops(float(v))
        for p, v in zip(draw.prompts, draw.visual_tokens, strict=True)
    ]


def suffix_flops(geometry: Geometry, draw: Draw) -> list[float]:
    """Operations of a forward over each group's responses."""
    made: list[float] = []
    for prompt, group in zip(draw.prompts, draw.responses, strict=True):
        r = group.astype(float)
        made.append(geometry.text_flops(float(r.sum()), float((r * (prompt + r / 2)).sum()), float(r.sum())))
    return made


def _rates(trace: Trace, pairs: list[tuple[int, Draw]], geometry: Geometry) -> Measured:
    forward = {step: sum(prefix_flops(geometry, draw)) for step, draw in pairs}
    suffix = {step: sum(suffix_flops(geometry, draw)) for step, draw in pairs}
    busy = {step: _by_kind(trace, step) for step, _ in pairs}
    prefixes: dict[str, float] = {}
    for kind, name in (
        ("prefix(policy)", "policy_prefix"),
        ("prefix(reference)", "reference_prefix"),
        ("prefill", "prefill"),
    ):
        seen = [busy[s][kind] / forward[s] for s, _ in pairs if busy[s].get(kind, 0.0) > 0]
        if seen:
            prefixes[name] = median(seen)
    nearest = prefixes.get("reference_prefix") or prefixes["policy_prefix"]
    prefixes.setdefault("prefill", nearest)
    prefixes.setdefault("reference_prefix", nearest)
    return Measured(
        geometry=geometry,
        prefix_s_per_flop=prefixes,
        backward_s_per_flop=median(busy[s].get("backward", 0.0) / (BACKWARD_PASSES * forward[s]) for s, _ in pairs),
        suffix_s_per_flop=median(busy[s]["suffix"] / (SUFFIX_PASSES * suffix[s]) for s, _ in pairs),
        speed=_speed(trace, pairs, geometry),
        reward_s=median(busy[s].get("reward", 0.0) / draw.num_prompts for s, draw in pairs),
        update_s=median(busy[s]["update"] for s, _ in pairs),
    )


def _by_kind(trace: Trace, step: int) -> dict[str, float]:
    """Seconds of a step by kind of work: phases, with decode's prefill and the prefix's backward told apart."""
    totals: dict[str, float] = {}
    for tick in trace.ticks:
        if tick.step == step:
            kind = _kind(tick)
            totals[kind] = totals.get(kind, 0.0) + tick.end_s - tick.start_s
    return totals


def _kind(tick: Tick) -> str:
    if tick.phase == "decode":
        return "decode" if tick.label.startswith(("token", "group")) or tick.label == "end" else "prefill"
    if tick.phase == "suffix":
        return "suffix" if tick.label.endswith("responses") or tick.label in ("scale", "end") else "backward"
    return tick.phase


def _speed(trace: Trace, pairs: list[tuple[int, Draw]], geometry: Geometry) -> Speed:
    """Least squares, none below zero, over every iteration of every step; a group's prompt is read once."""
    features: list[numpy.ndarray] = []
    seconds: list[float] = []
    for step, draw in pairs:
        ticks = [t for t in trace.ticks if t.step == step and t.phase == "decode" and _kind(t) == "decode"]
        tokens = [t for t in ticks if t.label.startswith("token")]
        rows, context = living(draw, len(tokens))
        features.append(numpy.stack([numpy.ones(len(tokens)), rows, context], axis=1))
        # What a completed group costs on top belongs to the iterations, evenly.
        beside = sum(t.end_s - t.start_s for t in ticks if not t.label.startswith("token")) / max(len(tokens), 1)
        seconds.extend(t.end_s - t.start_s + beside for t in tokens)
    matrix, target = numpy.concatenate(features), numpy.array(seconds)
    scale = matrix.max(axis=0).clip(1e-12)
    (fixed, row, context_s), _ = nnls(matrix / scale, target)
    fixed, row, context_s = (float(x / s) for x, s in zip((fixed, row, context_s), scale, strict=True))
    return Speed(fixed_s=fixed, row_s=row, context_s=context_s, kv_bytes=geometry.kv_bytes, per_group=True)

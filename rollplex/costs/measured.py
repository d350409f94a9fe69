"""Costs from a measured trace: rates of one workload, so that another workload, schedule or device can be predicted.

Each kind of work gets a rate: seconds for an operation of prompt forwards, of prefix backwards, of suffixes; seconds of a
decode iteration as a fixed part, a part for each row and a part for each token of context; a suffix has a fixed part for
each microbatch, which only traces with microbatches of several sizes tell apart. Rates are medians or fits over the steps;
what they do not show (a prefill, say) is taken from the nearest kind that they show.
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
    suffix_fixed_s: float = 0.0
    """A suffix microbatch, whatever its size."""
    microbatch: int = 1
    """Most responses of a suffix microbatch."""
    beside_s: float = 0.0
    """What a step takes besides: between ticks, and where a suffix closes."""
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
        return cls.from_traces([(trace, draws)], geometry)

    @classmethod
    def from_traces(cls, parts: Sequence[tuple[Trace, Sequence[Draw]]], geometry: Geometry) -> Measured:
        """Rates from several traces of one workload, each with the lengths of its last steps.

        Schedules that stream show small microbatches and the others large ones: together they tell their fixed part.
        """
        seen: list[_Seen] = []
        for trace, draws in parts:
            indices = trace.steps()[-len(draws) :] if draws else []
            if len(indices) < len(draws):
                raise ValueError(
                    f"reading costs from a trace: it has {len(indices)} steps, and {len(draws)} were given"
                )
            seen += [_Seen(trace.of_step(i), trace.step_s(i), draw) for i, draw in zip(indices, draws, strict=True)]
        if not seen:
            raise ValueError("reading costs from a trace: no step was given. Run a few steps first.")
        return _rates(seen, geometry)

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
                return self._suffix(draw, streamed=order.streamed)
            case "update":
                return [Piece("adamw", self.update_s + self.beside_s)]
            case other:
                raise ValueError(f"costing a phase that writes {other!r}: a trace of one pool does not show it")

    def _suffix(self, draw: Draw, *, streamed: bool) -> list[Piece]:
        """A group each; the fixed part of microbatches evenly over them."""
        num = draw.num_prompts if streamed else -(-draw.responses.size // self.microbatch)
        fixed = self.suffix_fixed_s * num / draw.num_prompts
        forward = prefix_flops(self.geometry, draw)
        return [
            Piece(
                f"group {i}",
                fixed + self.suffix_s_per_flop * SUFFIX_PASSES * f + self.backward_s_per_flop * BACKWARD_PASSES * back,
                part=i,
            )
            for i, (f, back) in enumerate(zip(suffix_flops(self.geometry, draw), forward, strict=True))
        ]


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
    """Operations of a forward over each prompt, all its visual tokens taken as one picture."""
    return [
        geometry.text_flops(float(p), float(p) ** 2 / 2)
        + geometry.vision_flops(float(v), patches_together=float(v) * geometry.merge)
        for p, v in zip(draw.prompts, draw.visual_tokens, strict=True)
    ]


def suffix_flops(geometry: Geometry, draw: Draw) -> list[float]:
    """Operations of a forward over each group's responses."""
    made: list[float] = []
    for prompt, group in zip(draw.prompts, draw.responses, strict=True):
        r = group.astype(float)
        made.append(geometry.text_flops(float(r.sum()), float((r * (prompt + r / 2)).sum()), float(r.sum())))
    return made


@dataclass(frozen=True, eq=False)
class _Seen:
    """A traced step with its lengths."""

    ticks: list[Tick]
    step_s: float
    draw: Draw

    def busy(self) -> dict[str, float]:
        """Seconds by kind of work: phases, with decode's prefill and the prefix's backward told apart."""
        totals: dict[str, float] = {}
        for tick in self.ticks:
            kind = _kind(tick)
            totals[kind] = totals.get(kind, 0.0) + tick.end_s - tick.start_s
        return totals


def _rates(seen: list[_Seen], geometry: Geometry) -> Measured:
    forward = [sum(prefix_flops(geometry, step.draw)) for step in seen]
    busy = [step.busy() for step in seen]
    prefixes: dict[str, float] = {}
    for kind, name in (
        ("prefix(policy)", "policy_prefix"),
        ("prefix(reference)", "reference_prefix"),
        ("prefill", "prefill"),
    ):
        shown = [b[kind] / f for b, f in zip(busy, forward, strict=True) if b.get(kind, 0.0) > 0]
        if shown:
            prefixes[name] = median(shown)
    nearest = prefixes.get("reference_prefix") or prefixes["policy_prefix"]
    prefixes.setdefault("prefill", nearest)
    prefixes.setdefault("reference_prefix", nearest)
    fixed, rate, microbatch = _suffix_rates(seen, geometry)
    return Measured(
        geometry=geometry,
        prefix_s_per_flop=prefixes,
        backward_s_per_flop=median(
            b.get("backward", 0.0) / (BACKWARD_PASSES * f) for b, f in zip(busy, forward, strict=True)
        ),
        suffix_s_per_flop=rate,
        suffix_fixed_s=fixed,
        microbatch=microbatch,
        speed=_speed(seen, geometry),
        reward_s=median(b.get("reward", 0.0) / step.draw.num_prompts for b, step in zip(busy, seen, strict=True)),
        update_s=median(b["update"] for b in busy),
        beside_s=max(0.0, median(step.step_s - _inside(b) for b, step in zip(busy, seen, strict=True))),
    )


def _inside(busy: dict[str, float]) -> float:
    """Seconds that some rate accounts for."""
    return sum(seconds for kind, seconds in busy.items() if kind != "beside")


def _kind(tick: Tick) -> str:
    if tick.phase == "decode":
        return "decode" if tick.label.startswith(("token", "group")) or tick.label == "end" else "prefill"
    if tick.phase == "suffix" and not tick.label.endswith("responses"):
        return "beside" if tick.label in ("scale", "end") else "backward"
    return tick.phase


def _suffix_rates(seen: list[_Seen], geometry: Geometry) -> tuple[float, float, int]:
    """Seconds of a microbatch and of an operation, and the most responses of a microbatch.

    A line through the medians of each size, weighted to make relative errors count; one size alone has no fixed part.
    """
    sizes: dict[int, list[tuple[float, float]]] = {}
    for step in seen:
        work = SUFFIX_PASSES * sum(suffix_flops(geometry, step.draw)) / step.draw.responses.size
        for tick in step.ticks:
            if tick.phase == "suffix" and tick.label.endswith("responses"):
                num = int(tick.label.split()[0])
                sizes.setdefault(num, []).append((num * work, tick.end_s - tick.start_s))
    points = [tuple(median(values) for values in zip(*pairs, strict=True)) for pairs in sizes.values()]
    if len(points) == 1:
        return 0.0, points[0][1] / points[0][0], max(sizes)
    flops, seconds = (numpy.array(values) for values in zip(*points, strict=True))
    matrix = numpy.stack([numpy.ones_like(flops), flops / flops.max()], axis=1) / seconds[:, None]
    (fixed, rate), _ = nnls(matrix, numpy.ones_like(seconds))
    return float(fixed), float(rate / flops.max()), max(sizes)


def _speed(seen: list[_Seen], geometry: Geometry) -> Speed:
    """Least squares, none below zero, over every iteration of every step; a group's prompt is read once."""
    features: list[numpy.ndarray] = []
    seconds: list[float] = []
    for step in seen:
        ticks = [tick for tick in step.ticks if tick.phase == "decode" and _kind(tick) == "decode"]
        tokens = [tick for tick in ticks if tick.label.startswith("token")]
        rows, context = living(step.draw, len(tokens))
        features.append(numpy.stack([numpy.ones(len(tokens)), rows, context], axis=1))
        # What a completed group costs on top belongs to the iterations, evenly.
        beside = sum(t.end_s - t.start_s for t in ticks if not t.label.startswith("token")) / max(len(tokens), 1)
        seconds.extend(t.end_s - t.start_s + beside for t in tokens)
    matrix, target = numpy.concatenate(features), numpy.array(seconds)
    scale = matrix.max(axis=0).clip(1e-12)
    (fixed, row, context_s), _ = nnls(matrix / scale, target)
    fixed, row, context_s = (float(x / s) for x, s in zip((fixed, row, context_s), scale, strict=True))
    return Speed(fixed_s=fixed, row_s=row, context_s=context_s, kv_bytes=geometry.kv_bytes, per_group=True)

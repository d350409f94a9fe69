"""Costs from a measured trace: rates of one workload, so that another workload, schedule or device can be predicted.

Each kind of work (a prompt forward of each model, its backward, a suffix) has `Rates`; a decode iteration has a fixed
part, a part for each row and a part for each token of context. What the traces do not show (a prefill, say) is taken from
the nearest kind that they show. The more sizes they show, the better parts are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy
from scipy.optimize import nnls

from rollplex.costs.costs import Order, Piece
from rollplex.costs.decoding import Speed, decode_pieces, living
from rollplex.costs.geometry import Geometry
from rollplex.costs.rates import Rates
from rollplex.costs.work import Work, prefix_work, suffix_work
from rollplex.costs.workload import Draw
from rollplex.step import Step
from rollplex.trace import ADMIT, Tick, Trace


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Rates of one device for one model."""

    geometry: Geometry
    """The model that was measured."""
    prefixes: dict[str, Rates]
    """Field of a prefix, or ``"prefill"`` -> rates of its forward."""
    backward: Rates
    """Of prefix backward passes."""
    suffix: Rates
    """Of suffixes, forwards and backward together; a pass is a microbatch."""
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

    @classmethod
    def from_trace(cls, trace: Trace, steps: Sequence[Step] | Sequence[Draw], geometry: Geometry) -> Measured:
        """Rates from the traced steps; give the steps themselves, whose lengths say how much work there was."""
        draws = [step if isinstance(step, Draw) else draw_of(step) for step in steps]
        return cls.from_traces([(trace, draws)], geometry)

    @classmethod
    def from_traces(cls, parts: Sequence[tuple[Trace, Sequence[Draw]]], geometry: Geometry) -> Measured:
        """Rates from several traces, each with the lengths of its last steps.

        Steps of several sizes tell the parts of a rate apart; so do schedules that stream, whose microbatches are small.
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
            prefixes={name: rates.faster(compute) for name, rates in self.prefixes.items()},
            backward=self.backward.faster(compute),
            suffix=self.suffix.faster(compute),
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
                rates = self.prefixes["prefill"]
                prefill = [0.0 if order.handoff else rates.seconds(work) for work in prefix_work(self.geometry, draw)]
                return decode_pieces(draw, numpy.array(prefill), 1, self.speed)
            case "policy_prefix" | "reference_prefix":
                rates = self.prefixes[order.field]
                prompts = prefix_work(self.geometry, draw)
                return [Piece(f"prompt {i}", rates.seconds(work)) for i, work in enumerate(prompts)]
            case "rewards":
                return [Piece(f"group {i}", self.reward_s, "host", (i,), i) for i in range(draw.num_prompts)]
            case "suffix":
                return self._suffix(draw, streamed=order.streamed)
            case "update":
                return [Piece("adamw", self.update_s + self.beside_s)]
            case other:
                raise ValueError(f"costing a phase that writes {other!r}: a trace of one pool does not show it")

    def _suffix(self, draw: Draw, *, streamed: bool) -> list[Piece]:
        """A group each; the cost of microbatches, and of the backward's pass, evenly over them."""
        passes = draw.num_prompts if streamed else -(-draw.responses.size // self.microbatch)
        forward = prefix_work(self.geometry, draw)
        return [
            Piece(f"group {i}", self.suffix.seconds(work) + self.backward.seconds(prompt), part=i)
            for i, (work, prompt) in enumerate(zip(suffix_work(self.geometry, draw, passes), forward, strict=True))
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
    forward = [_total(prefix_work(geometry, step.draw)) for step in seen]
    busy = [step.busy() for step in seen]

    def rates(kind: str) -> Rates | None:
        """None where no trace shows it."""
        shown = [(work, b[kind]) for work, b in zip(forward, busy, strict=True) if b.get(kind, 0.0) > 0]
        return Rates.fit(shown) if shown else None

    policy, backward = rates("prefix(policy)"), rates("backward")
    if policy is None or backward is None:
        raise ValueError("reading costs from a trace: it shows no prefix of the policy, or no backward of one")
    nearest = rates("prefix(reference)") or policy
    suffix, microbatch = _suffix_rates(seen, geometry)
    return Measured(
        geometry=geometry,
        prefixes={
            "policy_prefix": policy,
            "reference_prefix": nearest,
            "prefill": rates("prefill") or nearest,
        },
        backward=backward,
        suffix=suffix,
        microbatch=microbatch,
        speed=_speed(seen, geometry),
        reward_s=median(b.get("reward", 0.0) / step.draw.num_prompts for b, step in zip(busy, seen, strict=True)),
        update_s=median(b["update"] for b in busy),
        beside_s=max(0.0, median(step.step_s - _inside(b) for b, step in zip(busy, seen, strict=True))),
    )


def _total(works: Sequence[Work]) -> Work:
    total = Work()
    for work in works:
        total += work
    return total


def _inside(busy: dict[str, float]) -> float:
    """Seconds that some rate accounts for."""
    return sum(seconds for kind, seconds in busy.items() if kind != "beside")


def _kind(tick: Tick) -> str:
    if tick.label == ADMIT:  # moving, not computing
        return "beside"
    if tick.phase == "decode":
        return "decode" if tick.label.startswith(("token", "group")) or tick.label == "end" else "prefill"
    if tick.phase == "suffix" and not tick.label.endswith("responses"):
        return "beside" if tick.label in ("scale", "end") else "backward"
    return tick.phase


def _suffix_rates(seen: list[_Seen], geometry: Geometry) -> tuple[Rates, int]:
    """Rates of a microbatch, and the most responses of one."""
    measured: list[tuple[Work, float]] = []
    largest = 0
    for step in seen:
        total = _total(suffix_work(geometry, step.draw))
        for tick in step.ticks:
            if tick.phase == "suffix" and tick.label.endswith("responses"):
                num = int(tick.label.split()[0])
                largest = max(largest, num)
                work = replace(total * (num / step.draw.responses.size), passes=1.0)
                measured.append((work, tick.end_s - tick.start_s))
    return Rates.fit(measured), largest


def _speed(seen: list[_Seen], geometry: Geometry) -> Speed:
    """Least squares, none below zero, over every iteration of every step; a group's prompt is read once.

    Errors are relative to the step's mean iteration, so that short steps count as much as long ones.
    """
    features: list[numpy.ndarray] = []
    seconds: list[numpy.ndarray] = []
    for step in seen:
        ticks = [tick for tick in step.ticks if tick.phase == "decode" and _kind(tick) == "decode"]
        tokens = [tick for tick in ticks if tick.label.startswith("token")]
        if not tokens:
            continue
        rows, context = living(step.draw, len(tokens))
        # What a completed group costs on top belongs to the iterations, evenly.
        beside = sum(t.end_s - t.start_s for t in ticks if not t.label.startswith("token")) / len(tokens)
        times = numpy.array([t.end_s - t.start_s + beside for t in tokens])
        features.append(numpy.stack([numpy.ones(len(tokens)), rows, context], axis=1) / times.mean())
        seconds.append(times / times.mean())
    if not features:
        raise ValueError("reading costs from a trace: no token was decoded in its steps")
    matrix, target = numpy.concatenate(features), numpy.concatenate(seconds)
    scale = matrix.max(axis=0).clip(1e-12)
    (fixed, row, context_s), _ = nnls(matrix / scale, target)
    fixed, row, context_s = (float(x / s) for x, s in zip((fixed, row, context_s), scale, strict=True))
    return Speed(fixed_s=fixed, row_s=row, context_s=context_s, kv_bytes=geometry.kv_bytes, per_group=True)

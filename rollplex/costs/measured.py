"""Costs from a measured trace: rates of one workload, so that another workload, schedule or device can be predicted.

Each kind of work (a prompt forward of each model, its backward, a suffix) has `Rates`; a decode iteration has a fixed
part, a part for each row and a part for each token of context. What the traces do not show (a prefill, say) is taken from
the nearest kind that they show. The more sizes they show, the better parts are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

import numpy
from scipy.optimize import nnls

from rollplex.bounds import POSITIVE, expect
from rollplex.costs.costs import Order, Piece
from rollplex.costs.decoding import Speed, decode_pieces, living
from rollplex.costs.geometry import Geometry
from rollplex.costs.observed import PREFIXES, Observed, observed
from rollplex.costs.rates import Rates
from rollplex.costs.work import Work, prefix_work, suffix_work, total
from rollplex.costs.workload import Draw
from rollplex.step import Step
from rollplex.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Rates of one device for one model."""

    geometry: Geometry
    """The model that was measured."""
    prefixes: dict[str, Rates]
    """Field of a prefix, or ``"prefill"`` -> rates of its forward; no ``reference_prefix`` where there was no reference."""
    backward: Rates
    """Of prefix backward passes, a repeated forward included, for each operation of one forward."""
    suffix: Rates
    """Of suffixes, for each operation of the actor's forward: reference, forward and backward; a pass is a microbatch."""
    microbatch: int = 1
    """Most responses of a suffix microbatch."""
    pass_tokens: float = inf
    """Prompt tokens of one pass, where prompts were seen to need several."""
    beside_s: float = 0.0
    """What a step takes besides: between ticks, moves within a budget, closing. The host's time, on any device."""
    speed: Speed
    """Of decoding."""
    reward_s: float
    """A group's rewards: the host's time too."""
    update_s: float
    """The optimizer."""

    @classmethod
    def from_trace(cls, trace: Trace, steps: Sequence[Step] | Sequence[Draw], geometry: Geometry) -> Measured:
        """Rates from the traced steps; give the steps themselves, whose lengths say how much work there was."""
        draws = [step if isinstance(step, Draw) else draw_of(step) for step in steps]
        return cls.from_traces([(trace, draws)], geometry)

    @classmethod
    def from_traces(cls, parts: Sequence[tuple[Trace, Sequence[Draw]]], geometry: Geometry) -> Measured:
        """Rates from several traces, each with the lengths of its steps: those that they name, or its last finished ones.

        Steps of several sizes tell the parts of a rate apart; so do schedules that stream, whose microbatches are small.
        Steps in which lanes worked at the same time are refused: costs are what work takes alone.
        """
        seen = [step for trace, draws in parts for step in observed(trace, draws)]
        if not seen:
            raise ValueError("reading costs from a trace: no finished step was given. Run a few steps first.")
        return _rates(seen, geometry)

    @property
    def reference(self) -> bool:
        """Whether a reference's prefix was measured."""
        return "reference_prefix" in self.prefixes

    def on(self, *, compute: float = 1.0, memory: float = 1.0) -> Measured:
        """The same model on another device, so many times as fast in arithmetic and in memory.

        Decoding and the optimizer go by memory, everything else by arithmetic; what the host does takes as long as here.
        """
        expect(
            "scaling costs to another device", {"compute": compute, "memory": memory}, compute=POSITIVE, memory=POSITIVE
        )
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
                prefill = numpy.zeros(draw.num_prompts) if order.handoff else self._forwards("prefill", draw)
                return decode_pieces(draw, numpy.array(prefill), 1, self.speed)
            case "policy_prefix" | "reference_prefix" if order.field in self.prefixes:
                return [Piece(f"prompt {i}", seconds) for i, seconds in enumerate(self._forwards(order.field, draw))]
            case "rewards":
                return [Piece(f"group {i}", self.reward_s, "host", (i,), i) for i in range(draw.num_prompts)]
            case "suffix":
                return self._suffix(draw, streamed=order.streamed)
            case "update":
                return [Piece("adamw", self.update_s + self.beside_s)]
            case other:
                raise ValueError(
                    f"costing a phase that writes {other!r}: the measured steps had none. Lay out phases that they had "
                    "(layout(schedule, reference=False) without a reference), or take the costs of a Roofline."
                )

    def _forwards(self, field: str, draw: Draw) -> list[float]:
        """Seconds of each prompt's forward."""
        works = prefix_work(self.geometry, draw, self._passes(draw))
        return [self.prefixes[field].seconds(work) for work in works]

    def _passes(self, draw: Draw) -> int:
        """Passes that the prompts need: of like length together, at most all in one and at least one for each."""
        return min(max(round(float(draw.prompts.sum()) / self.pass_tokens), 1), draw.num_prompts)

    def _suffix(self, draw: Draw, *, streamed: bool) -> list[Piece]:
        """A group each; the cost of microbatches, and of the backward's passes, evenly over them."""
        num, group = draw.responses.shape
        passes = self._passes(draw)
        # A microbatch never has responses of two passes, nor of two groups that come one after another.
        parts = num if streamed else passes
        microbatches = parts * -(-num * group // (parts * self.microbatch))
        forward = prefix_work(self.geometry, draw, passes)
        return [
            Piece(f"group {i}", self.suffix.seconds(work) + self.backward.seconds(prompt), part=i)
            for i, (work, prompt) in enumerate(
                zip(suffix_work(self.geometry, draw, microbatches), forward, strict=True)
            )
        ]


def draw_of(step: Step) -> Draw:
    """The lengths of a finished step."""
    if step.rollout is None:
        raise ValueError(
            f"reading the lengths of step {step.index}: it has no rollout, so it was broken off. Give steps that were "
            "finished."
        )
    prompts = numpy.array([prompt.length for prompt in step.prompts])
    # A picture or video is one token of the text, and as many of the prompt as it has visual tokens.
    visual = numpy.array([p.length - p.text_ids.numel() + p.num_images + p.num_videos for p in step.prompts])
    return Draw(
        prompts=prompts,
        responses=numpy.stack([group.lengths.numpy() for group in step.rollout.groups]),
        visual_share=float(visual.sum() / prompts.sum()),
        visual=visual,
        step=step.index,
    )


def _rates(seen: list[Observed], geometry: Geometry) -> Measured:
    def rates(kind: str) -> Rates | None:
        """None where no trace shows it."""
        shown = [step for step in seen if step.seconds(kind) > 0]
        works = [total(prefix_work(geometry, step.draw, step.passes(kind))) for step in shown]
        return (
            Rates.fit([(work, step.seconds(kind)) for work, step in zip(works, shown, strict=True)]) if shown else None
        )

    found = {field: rates(kind) for field, kind in PREFIXES.items()}
    policy, backward = found["policy_prefix"], rates("backward")
    if policy is None or backward is None:
        raise ValueError(
            "reading costs from a trace: it shows no prefix of the policy, or no backward of one. Give steps of a run whose "
            "phases are rollplex's Prefix and Suffix."
        )
    nearest = found["prefill"] or found["reference_prefix"] or policy
    suffix, microbatch = _suffix_rates(seen, geometry)
    several = [(step, step.passes("prefix(policy)")) for step in seen if step.passes("prefix(policy)") > 1]
    return Measured(
        geometry=geometry,
        prefixes={field: one for field, one in found.items() if one is not None} | {"prefill": nearest},
        backward=backward,
        suffix=suffix,
        microbatch=microbatch,
        pass_tokens=max((float(step.draw.prompts.sum()) / passes for step, passes in several), default=inf),
        speed=_speed(seen, geometry),
        reward_s=median(step.seconds("reward") / step.draw.num_prompts for step in seen),
        update_s=median(step.seconds("update") for step in seen),
        beside_s=median(step.beside_s for step in seen),
    )


def _suffix_rates(seen: list[Observed], geometry: Geometry) -> tuple[Rates, int]:
    """Rates of a microbatch, and the most responses of one."""
    measured: list[tuple[Work, float]] = []
    largest = 0
    for step in seen:
        whole = total(suffix_work(geometry, step.draw))
        for tick in step.of("suffix"):
            num = int(tick.label.split()[0])
            largest = max(largest, num)
            measured.append((whole.part(num / step.draw.responses.size, passes=1.0), tick.end_s - tick.start_s))
    return Rates.fit(measured), largest


def _speed(seen: list[Observed], geometry: Geometry) -> Speed:
    """Least squares, none below zero, over every iteration of every step; a group's prompt is read once.

    Errors are relative to the step's mean iteration, so that short steps count as much as long ones.
    """
    features: list[numpy.ndarray] = []
    seconds: list[numpy.ndarray] = []
    for step in seen:
        tokens = [tick for tick in step.of("decode") if tick.label.startswith("token")]
        if not tokens:
            continue
        rows, context = living(step.draw, len(tokens))
        times = numpy.array([tick.end_s - tick.start_s for tick in tokens])
        # What a completed group costs on top belongs to the iterations, evenly.
        times += (step.seconds("decode") - times.sum()) / len(tokens)
        features.append(numpy.stack([numpy.ones(len(tokens)), rows, context], axis=1) / times.mean())
        seconds.append(times / times.mean())
    if not features:
        raise ValueError("reading costs from a trace: no token was decoded in its steps. Give steps that decoded some.")
    matrix, target = numpy.concatenate(features), numpy.concatenate(seconds)
    scale = matrix.max(axis=0).clip(1e-12)
    (fixed, row, context_s), _ = nnls(matrix / scale, target)
    fixed, row, context_s = (float(x / s) for x, s in zip((fixed, row, context_s), scale, strict=True))
    return Speed(fixed_s=fixed, row_s=row, context_s=context_s, kv_bytes=geometry.kv_bytes, per_group=True)

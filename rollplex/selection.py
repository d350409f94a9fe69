"""Which responses a rollout decodes, and which of them are trained on: what cuts the tail of long responses.

A selection turns a workload into the lengths of successive steps. Each says whether training stays on-policy, and
whether long responses are as likely to be trained on as short ones. Its ``period`` is the number of steps after which it repeats.

Shapes: A prompts under way, G responses a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, final

import numpy

from rollplex.bounds import Bounds, expect
from rollplex.costs.workload import Draw, Workload

ABOVE_ONE = Bounds(1, above=True)
"""What there is more of than is trained on."""


@final
@dataclass(frozen=True)
class Everything:
    """Every response is decoded to its end and trained on."""

    name: ClassVar[str] = "Everything"
    on_policy: ClassVar[bool] = True
    period: ClassVar[int] = 1

    def draws(self, workload: Workload, seed: int = 0) -> Iterator[Draw]:
        """Lengths of step 0, 1, ..."""
        for step in count():
            yield workload.draw(step, seed=seed)


@final
@dataclass(frozen=True)
class Partial:
    """Stop a rollout when enough groups are complete; the others go on from there in the next step (APRIL).

    A response that goes on was begun by older weights: training is off-policy in part, by one step or more.
    """

    over: float = 1.25
    """Prompts under way, as a multiple of those trained on."""

    name: ClassVar[str] = "Partial"
    on_policy: ClassVar[bool] = False
    """A resumed response has tokens of two or more weights."""
    period: ClassVar[int] = 1

    def __post_init__(self) -> None:
        expect("making a Partial", vars(self), over=ABOVE_ONE)

    def draws(self, workload: Workload, seed: int = 0) -> Iterator[Draw]:
        """Lengths of step 0, 1, ...; the first steps differ from the later ones, until the backlog is level."""
        active = math.ceil(self.over * workload.prompts)
        prompts = numpy.zeros(0, dtype=numpy.int64)
        totals = numpy.zeros((0, workload.group), dtype=numpy.int64)
        done = totals.copy()
        for step in count():
            fresh = workload.draw(step, seed=seed, prompts=active - len(prompts))
            prompts = numpy.concatenate([prompts, fresh.prompts])
            totals = numpy.concatenate([totals, fresh.responses])
            done = numpy.concatenate([done, numpy.zeros_like(fresh.responses)])
            chosen, cut = _first(totals - done, workload.prompts)
            decoded = numpy.minimum(totals - done, cut)
            yield _chosen(prompts, decoded, totals, chosen, workload.visual_share, done)
            done = done + decoded
            prompts, totals, done = prompts[~chosen], totals[~chosen], done[~chosen]


@final
@dataclass(frozen=True)
class Oversample:
    """Start more prompts than needed, train on those that complete first, drop the others.

    On-policy, but short responses are trained on more often than they occur.
    """

    over: float = 1.25
    """Prompts begun, as a multiple of those trained on."""

    name: ClassVar[str] = "Oversample"
    on_policy: ClassVar[bool] = True
    period: ClassVar[int] = 1

    def __post_init__(self) -> None:
        expect("making an Oversample", vars(self), over=ABOVE_ONE)

    def draws(self, workload: Workload, seed: int = 0) -> Iterator[Draw]:
        """Lengths of step 0, 1, ..."""
        for step in count():
            full = workload.draw(step, seed=seed, prompts=math.ceil(self.over * workload.prompts))
            chosen, cut = _first(full.responses, workload.prompts)
            decoded = numpy.minimum(full.responses, cut)
            yield _chosen(full.prompts, decoded, full.responses, chosen, workload.visual_share)


@final
@dataclass(frozen=True)
class TailBatch:
    """Set prompts with long responses aside, and decode them together in a round of their own (RollPacker).

    On-policy and, over many steps, unbiased: every prompt is trained on once.
    """

    over: float = 1.25
    """Prompts begun in a short round, as a multiple of those trained on."""

    name: ClassVar[str] = "TailBatch"
    on_policy: ClassVar[bool] = True
    """What was set aside starts over from the new weights."""

    @property
    def period(self) -> int:
        """Short rounds until enough was set aside, and the long one."""
        return math.ceil(round(1 / (self.over - 1), 6)) + 1

    def __post_init__(self) -> None:
        expect("making a TailBatch", vars(self), over=ABOVE_ONE)

    def draws(self, workload: Workload, seed: int = 0) -> Iterator[Draw]:
        """Lengths of step 0, 1, ...: short rounds, and a long one whenever enough was set aside."""
        aside_prompts = numpy.zeros(0, dtype=numpy.int64)
        aside = numpy.zeros((0, workload.group), dtype=numpy.int64)
        num = workload.prompts
        for step in count():
            if len(aside) >= num:
                prompts, lengths = aside_prompts[:num], aside[:num]
                aside_prompts, aside = aside_prompts[num:], aside[num:]
                yield Draw(prompts=prompts, responses=lengths, visual_share=workload.visual_share)
                continue
            full = workload.draw(step, seed=seed, prompts=math.ceil(self.over * num))
            chosen, cut = _first(full.responses, num)
            aside_prompts = numpy.concatenate([aside_prompts, full.prompts[~chosen]])
            aside = numpy.concatenate([aside, full.responses[~chosen]])
            decoded = numpy.minimum(full.responses, cut)
            yield _chosen(full.prompts, decoded, full.responses, chosen, workload.visual_share)


@final
@dataclass(frozen=True)
class Replicate:
    """Spread a group's responses over all engines, each as a prompt of its own (ROLL Flash's prompt replication).

    On-policy and unbiased; every engine prefills the prompt for itself.
    """

    name: ClassVar[str] = "Replicate"
    on_policy: ClassVar[bool] = True
    period: ClassVar[int] = 1

    def draws(self, workload: Workload, seed: int = 0) -> Iterator[Draw]:
        """Lengths of step 0, 1, ..."""
        for step in count():
            full = workload.draw(step, seed=seed)
            prompts = numpy.repeat(full.prompts, workload.group)
            yield Draw(
                prompts=prompts,
                responses=full.responses.reshape(-1, 1),
                visual_share=workload.visual_share,
                trained=full.responses.ravel(),
                trained_prompts=prompts,
                group=workload.group,
            )


AnySelection = Everything | Partial | Oversample | TailBatch | Replicate


def _first(remaining: numpy.ndarray, num: int) -> tuple[numpy.ndarray, int]:
    """Mask of the ``num`` groups that complete first, and the tokens that it takes."""
    longest = remaining.max(axis=1)
    order = numpy.argsort(longest, kind="stable")[:num]
    mask = numpy.zeros(len(longest), dtype=bool)
    mask[order] = True
    return mask, int(longest[order].max())


def _chosen(
    prompts: numpy.ndarray,
    decoded: numpy.ndarray,
    totals: numpy.ndarray,
    chosen: numpy.ndarray,
    visual_share: float,
    done: numpy.ndarray | None = None,
) -> Draw:
    return Draw(
        prompts=prompts,
        responses=decoded,
        visual_share=visual_share,
        trained=totals[chosen].ravel(),
        trained_prompts=numpy.repeat(prompts[chosen], totals.shape[1]),
        done=done,
    )

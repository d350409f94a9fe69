"""Decoding over time: batches that shrink as responses end, caches that grow, replicas that finish apart.

An iteration of one replica costs ``fixed + row * rows + context * tokens of context``. This file turns lengths into
pieces; where the three numbers come from is not its business.

Shapes: N prompts, G responses a prompt, T iterations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from rollplex.costs.costs import Piece
from rollplex.costs.workload import Draw


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one decode iteration of one replica costs."""

    fixed_s: float
    """Whatever the batch: weights read once, launches, latencies of collectives."""
    row_s: float
    """For each living response."""
    context_s: float
    """For each token of context that is read."""
    kv_bytes: float
    """Bytes of a token's keys and values on one device."""
    per_group: bool = False
    """Whether a group's prompt is read once, not once for each response."""
    accepted: float = 1.0
    """Tokens for each iteration."""


def decode_pieces(
    draw: Draw, prefill_s: numpy.ndarray, replicas: int, speed: Speed, num_pieces: int = 32
) -> list[Piece]:
    """Pieces of a whole rollout, cut where groups complete and at even times; the slowest replica ends it.

    >>> speed = Speed(fixed_s=1.0, row_s=0.0, context_s=0.0, kv_bytes=1.0)
    >>> from rollplex.costs.workload import Workload
    >>> draw = Workload(prompts=2, group=1, response_tokens=10, response_spread=0).draw()
    >>> float(sum(p.seconds for p in decode_pieces(draw, numpy.zeros(2), 2, speed)))
    10.0
    """
    curves: list[_Curve] = []
    for replica in range(replicas):
        mine = numpy.arange(replica, draw.num_prompts, replicas)
        if len(mine):
            curves.append(_curve(draw, mine, float(prefill_s[mine].sum()), speed))
    ends = {prompt: end for curve in curves for prompt, end in curve.group_ends.items()}
    makespan = max((curve.end for curve in curves), default=0.0)
    if makespan <= 0:
        return []
    start = min(curve.start for curve in curves)
    grid = [start, *numpy.linspace(start, makespan, num_pieces + 1)[1:-1]] if makespan > start else []
    cuts = numpy.array(sorted({round(float(t), 9) for t in (*grid, *ends.values(), makespan) if t > 0}))
    before = numpy.concatenate([[0.0], cuts[:-1]])
    finish = numpy.array([curve.end for curve in curves])
    busy = (finish[:, None] > (before + cuts) / 2).sum(axis=0) / replicas
    held = numpy.max([curve.held(cuts) for curve in curves], axis=0)
    tokens = numpy.max([numpy.searchsorted(curve.times, cuts + 1e-9) for curve in curves], axis=0)
    ready: list[list[int]] = [[] for _ in cuts]
    for prompt, end in ends.items():
        ready[min(int(numpy.searchsorted(cuts, end - 1e-9)), len(cuts) - 1)].append(prompt)
    return [
        Piece(
            "prefill" if cut <= start + 1e-9 else f"tokens to {tokens[i]}",
            float(cut - before[i]),
            "decode",
            ready=tuple(ready[i]),
            busy=float(busy[i]),
            holds=int(held[i]),
        )
        for i, cut in enumerate(cuts)
    ]


@dataclass(frozen=True, eq=False)
class _Curve:
    """One replica: when each iteration ends, and what it holds then."""

    start: float
    times: numpy.ndarray
    kv: numpy.ndarray
    group_ends: dict[int, float]

    @property
    def end(self) -> float:
        return float(self.times[-1]) if len(self.times) else self.start

    def held(self, times: numpy.ndarray) -> numpy.ndarray:
        """Bytes at some moments; none once the replica has finished."""
        if not len(self.kv):
            return numpy.zeros_like(times)
        now = self.kv[numpy.minimum(numpy.searchsorted(self.times, times), len(self.kv) - 1)]
        return numpy.where(times >= self.end - 1e-9, 0.0, now)


def _curve(draw: Draw, prompts: numpy.ndarray, prefill_s: float, speed: Speed) -> _Curve:
    lengths = numpy.ceil(draw.responses[prompts] / speed.accepted).astype(numpy.int64)
    before = draw.before()[prompts]
    context = draw.prompts[prompts][:, None] + before
    longest = int(lengths.max(initial=0))
    steps = numpy.arange(longest)
    flat = lengths.ravel()
    rows = _alive(flat, numpy.ones_like(flat), longest)
    own = _alive(flat, before.ravel(), longest) + rows * steps * speed.accepted
    if speed.per_group:
        prompt = _alive(lengths.max(axis=1), draw.prompts[prompts], longest)
    else:
        prompt = _alive(flat, (context - before).ravel(), longest)
    stored = _alive(lengths.max(axis=1), draw.prompts[prompts], longest) + own
    seconds = speed.fixed_s + speed.row_s * rows + speed.context_s * (own + prompt)
    times = prefill_s + numpy.cumsum(seconds)
    last = lengths.max(axis=1, initial=0)
    ends = {int(p): float(times[n - 1]) if n else prefill_s for p, n in zip(prompts, last, strict=True)}
    return _Curve(start=prefill_s, times=times, kv=stored * speed.kv_bytes, group_ends=ends)


def living(draw: Draw, num: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """``[T]`` rows and tokens of context of ``num`` iterations, where a group's prompt is read once."""
    flat = draw.responses.ravel()
    rows = _alive(flat, numpy.ones_like(flat), max(num, int(flat.max())))
    prompt = _alive(draw.responses.max(axis=1), draw.prompts, len(rows))
    context = rows * numpy.arange(len(rows)) + prompt
    return rows[:num], context[:num]


def _alive(lengths: numpy.ndarray, weights: numpy.ndarray, longest: int) -> numpy.ndarray:
    """``[T]`` sum of the weights of those that are longer than t, for every iteration t."""
    ended = numpy.bincount(lengths, weights=weights.astype(float), minlength=longest + 1)
    return weights.sum() - numpy.cumsum(ended)[:longest]

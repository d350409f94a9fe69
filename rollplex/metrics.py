"""The numbers of one step, under the names that TRL's and verl's dashboards already have.

This file knows names, units and what each number means. It does not know where the numbers go: see `rollplex.log`.

Names, and what is new. TRL: ``reward``, ``reward_std``, ``rewards/<function>/mean|std``, ``frac_reward_zero_std``,
``completions/*``, ``kl``, ``entropy``, ``clip_ratio/region_mean``, ``loss``. verl: ``actor/*``, ``training/*``,
``timing_s/*``, ``perf/*``. New: ``timing_s/prefix``, ``timing_s/suffix``, ``overlap/*``, ``memory/<owner>_gib``,
``weights/version``, ``training/rollout_probs_diff_level`` (0 fine, 1 worth a look, 2 a fault).

A number over an empty set does not exist, so its key is left out: no rewards, no ``reward``; no response that ended,
no ``completions/mean_terminated_length``. A number that exists and is not finite (a loss that diverged) is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rollplex.mismatch import LEVELS, mismatch

if TYPE_CHECKING:
    from rollplex.step import RewardGroup, Step
    from rollplex.trace import Tick, Trace

Interval = tuple[float, float]


def metrics(step: Step, trace: Trace, baseline: Trace | None = None) -> dict[str, float]:
    """Every number of a step that has a value, by name.

    ``trace`` gives the times and the memory of the step. ``baseline`` is a trace in which decoding ran alone; with it
    comes ``overlap/decode_slowdown_s``: decode seconds here minus decode seconds there (the same step if the baseline
    has it, else the mean of its steps). Below 0 means that decoding was faster here.

    >>> from rollplex.prompts import PromptBatch
    >>> from rollplex.step import Step
    >>> from rollplex.trace import Trace
    >>> metrics(Step(index=0, seed=0, version=3, prompts=PromptBatch(prompts=())), Trace())
    {'weights/version': 3.0}
    """
    part = trace.select(step.index)
    values = {
        **_rewards(step),
        **_completions(step),
        **_policy(step),
        **_times(step, part),
        **_overlap(part),
        **_memory(part),
        "weights/version": float(step.update.version if step.update else step.version),
    }
    if baseline is not None:
        values |= _slowdown(part, baseline, step.index)
    return values


def phase_family(phase: str) -> str:
    """The kind of phase that a name belongs to: a name without its argument.

    >>> phase_family("prefix(reference)"), phase_family("decode")
    ('prefix', 'decode')
    """
    return phase.partition("(")[0]


def hidden_prefix_s(trace: Trace) -> float:
    """Seconds of prefix work during which a decode tick ran on another lane, by the clock.

    It is the intersection of the ticks' own intervals. Lanes that take turns on one processor never share a moment,
    so there it is 0, whatever the timetable intended.
    """
    lanes = {tick.lane for tick in trace.ticks}
    hidden = 0.0
    for lane in lanes:
        prefix = [t for t in trace.ticks if t.lane == lane and phase_family(t.phase) == "prefix"]
        decode = [t for t in trace.ticks if t.lane != lane and phase_family(t.phase) == "decode"]
        hidden += _shared(_union(prefix), _union(decode))
    return hidden


def concurrent_s(trace: Trace) -> float:
    """Seconds at which two lanes or more were at work.

    >>> from rollplex.trace import Tick, Trace
    >>> ticks = [Tick(0, "P1", "a", "decode", "", 0.0, 2.0), Tick(0, "P1", "b", "prefix(policy)", "", 1.5, 3.0)]
    >>> concurrent_s(Trace(ticks=ticks))
    0.5
    """
    lanes = {tick.lane for tick in trace.ticks}
    edges: list[tuple[float, int]] = []
    for lane in lanes:
        for start, end in _union([t for t in trace.ticks if t.lane == lane]):
            edges += [(start, +1), (end, -1)]
    total, active, since = 0.0, 0, 0.0
    for time, change in sorted(edges):  # at one instant the ends (-1) come first: touching is not overlapping
        if active >= 2:
            total += time - since
        active, since = active + change, time
    return total


def _rewards(step: Step) -> dict[str, float]:
    if step.rewards is None:
        return {}
    groups = step.rewards.groups
    scored = [_scored(group.values.tolist()) for group in groups]
    values = _mean("reward", (value for group in scored for value in group))
    # TRL's reward_std: the spread inside a group, averaged over groups. One score has no spread.
    values |= _mean("reward_std", (stdev(group) for group in scored if len(group) >= 2))
    values |= _mean("frac_reward_zero_std", (float(len(set(group)) <= 1) for group in scored))
    for name in dict.fromkeys(name for group in groups for name in group.by_function):
        own = _scored(_own_scores(groups, name))
        values |= _mean(f"rewards/{name}/mean", own)
        if len(own) >= 2:
            values[f"rewards/{name}/std"] = stdev(own)
    return values


def _own_scores(groups: Sequence[RewardGroup], name: str) -> Iterator[float]:
    for group in groups:
        if name in group.by_function:
            yield from group.by_function[name].tolist()


def _completions(step: Step) -> dict[str, float]:
    if step.rollout is None:
        return {}
    lengths = [float(length) for group in step.rollout.groups for length in group.lengths.tolist()]
    finished = [bool(flag) for group in step.rollout.groups for flag in group.finished.tolist()]
    if not lengths:
        return {}
    return {
        "completions/mean_length": fmean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        **_mean("completions/mean_terminated_length", (n for n, done in zip(lengths, finished, strict=True) if done)),
        "completions/clipped_ratio": 1.0 - fmean(finished),
    }


def _policy(step: Step) -> dict[str, float]:
    values: dict[str, float] = {}
    if step.suffix is not None:
        values = {
            "loss": step.suffix.loss,
            "kl": step.suffix.kl,
            "entropy": step.suffix.entropy,
            "clip_ratio/region_mean": step.suffix.clip_ratio,
            "actor/pg_loss": step.suffix.policy_loss,
            "training/rollout_probs_diff_mean": step.suffix.mismatch_mean,
            "training/rollout_probs_diff_max": step.suffix.mismatch_max,
        }
    found = mismatch(step)
    if found is not None:
        values["training/rollout_probs_diff_level"] = float(LEVELS[found.light])
    if step.update is not None:
        values |= {"actor/grad_norm": step.update.grad_norm, "actor/lr": step.update.learning_rate}
    return values


def _times(step: Step, part: Trace) -> dict[str, float]:
    if not part.ticks:
        return {}
    values: dict[str, float] = {}
    for tick in part.ticks:
        name = f"timing_s/{phase_family(tick.phase)}"
        values[name] = values.get(name, 0.0) + tick.end_s - tick.start_s
    values["timing_s/step"] = part.step_s(step.index)
    if step.rollout is not None:
        # verl's count: every sample has its prompt and its response, although here a group's prompt is computed once.
        tokens = sum(step.prompts[g.prompt].length * g.size + int(g.lengths.sum()) for g in step.rollout.groups)
        values["perf/total_num_tokens"] = float(tokens)
        if values["timing_s/step"] > 0:
            values["perf/throughput"] = tokens / values["timing_s/step"]
    return values


def _overlap(part: Trace) -> dict[str, float]:
    prefix = [t.end_s - t.start_s for t in part.ticks if phase_family(t.phase) == "prefix"]
    if not prefix:
        return {}
    hidden = hidden_prefix_s(part)
    return {"overlap/hidden_prefix_s": hidden, "overlap/exposed_prefix_s": max(0.0, sum(prefix) - hidden)}


def _slowdown(part: Trace, baseline: Trace, step: int) -> dict[str, float]:
    here = _decode_s(part)
    chosen = [step] if step in baseline.schedules else baseline.steps()
    there = [seconds for seconds in (_decode_s(baseline.select(i)) for i in chosen) if seconds is not None]
    return {"overlap/decode_slowdown_s": here - fmean(there)} if here is not None and there else {}


def _decode_s(part: Trace) -> float | None:
    decode = [t.end_s - t.start_s for t in part.ticks if phase_family(t.phase) == "decode"]
    return sum(decode) if decode else None


def _memory(part: Trace) -> dict[str, float]:
    peaks: dict[str, int] = {}
    for sample in part.samples:
        for owner, num_bytes in sample.owners.items():
            peaks[owner] = max(peaks.get(owner, 0), num_bytes)
    return {f"memory/{owner}_gib": peak / 2**30 for owner, peak in peaks.items()}


def _scored(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _mean(name: str, values: Iterable[float]) -> dict[str, float]:
    found = list(values)
    return {name: fmean(found)} if found else {}


def _union(ticks: Iterable[Tick]) -> list[Interval]:
    """Disjoint intervals, in order, that cover the ticks' own."""
    merged: list[Interval] = []
    for start, end in sorted((t.start_s, t.end_s) for t in ticks):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _shared(a: Sequence[Interval], b: Sequence[Interval]) -> float:
    """Length of the intersection of two lists of disjoint, ordered intervals."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return total

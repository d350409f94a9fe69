"""A training step against the same step of TRL's `GRPOTrainer`: fresh processes in alternation, ratios of each pair.

It knows the order of measurements and what is made of them. The sides themselves are `ours` and `peer_trl`; that they
do the same work is what `agreement` shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Any

from tqdm import tqdm

from rollplex.bench.peer_trl import MICROBATCH, peer_version
from rollplex.bench.sides import Answer, ask
from rollplex.bench.workloads import DEFAULT_FULL, WORKLOADS, Workload, workload
from rollplex.machine import Machine

STEPS: Mapping[str, int] = MappingProxyType({"default": 6, "default_full": 5, "input_heavy": 3})
"""Steps of each process, by workload; the first is a warm-up and not counted."""
AGREEMENT = 1e-4
"""Largest relative difference of the first step's loss and gradient, in float32, that counts as the same work."""


def bench(
    *,
    pairs: int = 5,
    workloads: Sequence[str] = (*WORKLOADS, DEFAULT_FULL.name),
    steps: int | None = None,
    threads: int = 0,
) -> dict[str, Any]:
    """Samples per second of ours over TRL's, as the median over pairs of fresh processes.

    Both sides get the same ``threads`` (0: every core, at most 2), the same checkpoint, rows, rewards, loss, AdamW and
    response lengths, in float32. ``steps`` are those of each process, the first not counted. ``passed`` says
    that loss and gradient of the first step agree; how fast either side is does not enter it.
    """
    if pairs < 1:
        raise ValueError(f"comparing with TRL: pairs is {pairs}; it must be at least 1")
    if steps is not None and steps < 2:
        raise ValueError(f"comparing with TRL: steps is {steps}; it must be at least 2, since the first is a warm-up")
    chosen = [workload(name) for name in workloads]
    found_version = peer_version()
    threads = threads or min(2, Machine.here().cores)
    results = {}
    with tqdm(total=len(chosen) * (2 * pairs + 1), desc="bench peers", unit="process") as bar:
        for each in chosen:
            results[each.name] = _compare(each, pairs, steps or STEPS.get(each.name, 3), threads, bar)
    print(report(results, found_version))
    return {
        "peer": "trl",
        "peer_version": found_version,
        "pairs": pairs,
        "threads": threads,
        "workloads": results,
        "passed": all(agrees(result) for result in results.values()),
    }


def _compare(work: Workload, pairs: int, steps: int, threads: int, bar: tqdm[Any]) -> dict[str, Any]:
    def run(side: str, num: int = steps) -> Answer:
        bar.set_postfix_str(f"{work.name}: {side}")
        answer = ask(f"rollplex.bench.{side}", work.name, steps=num, threads=threads)
        bar.update()
        return answer

    agreement = run("agreement", 1)
    measured = [(run("ours"), run("peer_trl")) for _ in range(pairs)]
    return {
        **summary(work, measured),
        **agreement,
        "prompts": work.prompts,
        "group": work.group,
        "visual_tokens": work.task.num_visual_tokens,
        "response_tokens": float(work.lengths().double().mean()),
        "steps": steps,
        "peer_microbatch": MICROBATCH.get(work.name, work.samples),
    }


def summary(work: Workload, measured: Sequence[tuple[Answer, Answer]]) -> dict[str, Any]:
    """Ratios of the pairs and each side's median speed; refuses pairs that sampled different numbers of tokens."""
    for ours, theirs in measured:
        if ours["tokens"] != theirs["tokens"]:
            raise RuntimeError(
                f"comparing with TRL on {work.name!r}: the sides sampled different numbers of tokens a step, "
                f"{ours['tokens']} and {theirs['tokens']}, so their speeds are not of the same work"
            )
    speeds = [(samples_per_s(work, ours), samples_per_s(work, theirs)) for ours, theirs in measured]
    ratios = [ours / theirs for ours, theirs in speeds]
    return {
        "ratio_median": median(ratios),
        "ratios": ratios,
        "ours_samples_per_s": median(ours for ours, _ in speeds),
        "peer_samples_per_s": median(theirs for _, theirs in speeds),
    }


def samples_per_s(work: Workload, answer: Answer) -> float:
    """Responses trained on in a second, over all steps but the first.

    >>> samples_per_s(WORKLOADS["default"], {"step_s": [9.0, 2.0, 2.0]})
    32.0
    """
    counted = answer["step_s"][1:]
    return work.samples * len(counted) / sum(counted)


def agrees(result: Mapping[str, Any]) -> bool:
    """Whether a workload's first step is the same on both sides; NaN is not."""
    return bool(
        result["first_step_loss_difference"] <= AGREEMENT and result["first_step_gradient_difference"] <= AGREEMENT
    )


def report(results: Mapping[str, Mapping[str, Any]], found_version: str) -> str:
    """The result as a table."""
    lines = [
        f"samples per second against TRL {found_version}",
        f"{'workload':<12} {'ours':>9} {'TRL':>9} {'ratio':>7}   first step: loss, gradient differ by",
    ]
    for name, found in results.items():
        lines.append(
            f"{name:<12} {found['ours_samples_per_s']:>9.2f} {found['peer_samples_per_s']:>9.2f} "
            f"{found['ratio_median']:>6.2f}x   {found['first_step_loss_difference']:.1e}, "
            f"{found['first_step_gradient_difference']:.1e}"
        )
    return "\n".join(lines)

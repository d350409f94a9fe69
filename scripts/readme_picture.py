"""Measure the README's picture: ``python scripts/readme_picture.py`` writes ``docs/schedules.svg``.

One training step of the shipped model on long prompts, under `Serial` and under `Rollplex`, from the same weights: of five
steps each, the one of median length. It is a measurement on this machine's CPU, where lanes take turns; the picture says so
itself.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median_low

import rollplex as rx
from rollplex.views.svg import timelines_svg

OUT = Path(__file__).parent.parent / "docs" / "schedules.svg"


def typical(trace: rx.Trace) -> rx.Trace:
    """The step of median length."""
    lengths = {trace.step_s(step): step for step in trace.steps()}
    return trace.select(lengths[median_low(lengths)])


def main() -> None:
    """Run five steps under each schedule and draw one."""
    task = rx.tasks.Digits.input_heavy()
    policy = rx.Policy.tiny()
    reference = rx.Reference(policy)
    phases = [
        rx.Prefix(policy),
        rx.Prefix(reference),
        rx.Decode(policy.engine(), group=8, max_new_tokens=32),
        rx.Reward(task),
        rx.Suffix(policy, reference, loss=rx.GRPO(beta=0.04)),
        rx.Update(policy),
    ]
    run = rx.Run(task, phases, prompts=4)
    comparison = rx.compare(run, rx.Serial(), rx.Rollplex(), steps=5)
    print(comparison)
    print(timelines_svg({name: typical(trace) for name, trace in comparison.traces.items()}).save(OUT))


if __name__ == "__main__":
    main()

"""The main job, end to end: train the shipped model by GRPO on real handwriting, evaluate, and write a report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollplex import schedules
from rollplex.compare import Comparison, compare
from rollplex.evaluate import evaluate
from rollplex.log import JsonLines, log
from rollplex.losses import GRPO
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference
from rollplex.run import Run
from rollplex.schedule import Schedule
from rollplex.step import Step
from rollplex.tasks import Digits
from rollplex.views.report import Section, figures, groups, report, table
from rollplex.views.rewards import rewards
from rollplex.views.watch import watch

SCHEDULES: Mapping[str, type[Schedule]] = {
    "Serial": schedules.Serial,
    "Rollplex": schedules.Rollplex,
    "OnePrefill": schedules.OnePrefill,
    "Streamed": schedules.Streamed,
}
PROMPTS, GROUP, NEW_TOKENS, LEARNING_RATE, BETA = 8, 8, 32, 1e-4, 0.01
EVALUATED = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """One seed's training."""

    seed: int
    """Seed of the task and of the sampling."""
    run: Run
    """The run: its policy, phases and trace."""
    curve: tuple[float, ...]
    """Mean reward of each step."""
    first: Step
    """The first step, for its rollouts."""
    last: Step
    """The last step, for its rollouts."""
    before: float
    """Held-out accuracy before training."""
    after: float
    """Held-out accuracy after training."""
    train_s: float
    """Seconds of the training loop alone."""

    def row(self) -> dict[str, Any]:
        """The figures of the table, under the names of the JSON."""
        tenth = max(1, len(self.curve) // 10)
        return {
            "seed": self.seed,
            "accuracy_before": self.before,
            "accuracy_after": self.after,
            "train_s": self.train_s,
            "steps": len(self.curve),
            "reward_first": sum(self.curve[:tenth]) / tenth,
            "reward_last": sum(self.curve[-tenth:]) / tenth,
        }


def demo(*, seeds: int = 1, steps: int = 120, schedule: str = "Rollplex", out: str | Path = "out") -> dict[str, Any]:
    """Train, evaluate on held-out prompts before and after, print one table, write ``report.html``.

    ``reward_first`` and ``reward_last`` are means over the first and last tenth of the steps; accuracy is greedy.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"running the demo: no schedule is called {schedule!r}; there are {', '.join(SCHEDULES)}")
    if seeds < 1 or steps < 1:
        raise ValueError(f"running the demo: found seeds={seeds} and steps={steps}; both must be at least 1")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    trained = [train(seed, steps, SCHEDULES[schedule](), folder) for seed in range(seeds)]
    shown = trained[0].run
    print("comparing the schedules on the next steps ...", flush=True)
    comparison = compare(shown, *(make() for make in SCHEDULES.values()), steps=3)
    rows = [t.row() for t in trained]
    print_table(rows)
    print(comparison)
    trace = shown.trace.to_chrome(folder / "trace.json")
    page = report(
        folder / "report.html",
        title="Rollplex demo",
        lead=f"GRPO on handwritten digits, {steps} steps under {schedule}, measured on {shown.trace.device}.",
        sections=sections(trained, comparison),
    )
    print(f"report: {page}\ntrace:  {trace} (opens in https://ui.perfetto.dev)")
    return {"seeds": rows, "report": page, "trace": trace}


def train(seed: int, steps: int, schedule: Schedule, folder: Path) -> Trained:
    """One seed: evaluate, train, evaluate."""
    task = Digits(seed=seed)
    policy = Policy.tiny()
    before = evaluate(policy, task, num=EVALUATED, max_new_tokens=NEW_TOKENS).accuracy
    reference = Reference(policy)
    phases = [
        Prefix(policy),
        Prefix(reference),
        Decode(policy.engine(), group=GROUP, max_new_tokens=NEW_TOKENS),
        Reward(task),
        Suffix(policy, reference, loss=GRPO(beta=BETA)),
        Update(policy, lr=LEARNING_RATE),
    ]
    run = Run(task, phases, schedule, prompts=PROMPTS, seed=seed)
    curve: list[float] = []
    first: Step | None = None
    start = time.perf_counter()
    for step in watch(log(run.steps(steps), JsonLines(folder / f"metrics-seed{seed}.jsonl"))):
        assert step.rewards is not None
        curve.append(step.rewards.mean())
        first = first or step
    train_s = time.perf_counter() - start
    after = evaluate(policy, task, num=EVALUATED, max_new_tokens=NEW_TOKENS).accuracy
    print(f"seed {seed}: held-out accuracy {before:.3f} -> {after:.3f} in {train_s:.0f} s", flush=True)
    assert first is not None
    assert run.last is not None
    return Trained(
        seed=seed,
        run=run,
        curve=tuple(curve),
        first=first,
        last=run.last,
        before=before,
        after=after,
        train_s=train_s,
    )


def sections(trained: Sequence[Trained], comparison: Comparison) -> list[Section]:
    """The report's parts."""
    shown = trained[0]
    device = shown.run.trace.device
    return [
        table(
            "Results",
            [t.row() for t in trained],
            caption=f"Greedy accuracy on {EVALUATED} held-out prompts whose digit images were never trained on.",
        ),
        figures(
            "Reward",
            rewards({f"seed {t.seed}": t.curve for t in trained}),
            caption="Mean reward of the sampled responses of each step (share of right answers).",
        ),
        figures(
            "One step under each schedule",
            comparison.timelines(),
            caption=f"Measured on {device}. One host thread gives the lanes turns, so on a CPU nothing overlaps: the bars show "
            "what each schedule does when, not what a GPU would gain.",
        ),
        table(
            "Schedules",
            comparison.frame().reset_index().to_dict("records"),
            caption="Median of three steps each, from the same weights. The last column is the largest difference of any "
            "weight to Serial's after them.",
        ),
        figures("Memory", shown.run.trace.memory(shown.last.index), caption="Bytes by owner during the last step."),
        groups("Rollouts before", [shown.first], prompts=2),
        groups("Rollouts after", [shown.last], prompts=2),
    ]


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The one table of the demo."""
    names = list(rows[0])
    print("  ".join(f"{name:>15}" for name in names))
    for row in rows:
        print("  ".join(f"{row[n]:>15.3f}" if isinstance(row[n], float) else f"{row[n]:>15}" for n in names))

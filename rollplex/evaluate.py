"""How good a policy is on prompts it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from rollplex.phases.decode import Decode
from rollplex.phases.reward import Reward
from rollplex.policy import Policy
from rollplex.step import RolloutGroup
from rollplex.task import Split, Task


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Scores of one response to each of many prompts."""

    rewards: tuple[float, ...]
    """One a prompt; NaN where no reward function applied."""
    rows: tuple[Any, ...]
    """The prompts' rows."""
    groups: tuple[RolloutGroup, ...]
    """The responses, one in each group."""
    version: int
    """Version of the weights that were evaluated."""

    @property
    def accuracy(self) -> float:
        """Mean reward over the scored prompts; for a task that scores 0 or 1, the share of right answers."""
        return _mean(self.rewards)

    def by(self, column: str) -> dict[str, float]:
        """Accuracy for each value of a column of the rows, e.g. ``"question"``."""
        values = dict.fromkeys(str(row[column]) for row in self.rows)
        return {value: self._where(column, value) for value in values}

    def _where(self, column: str, value: str) -> float:
        chosen = [r for r, row in zip(self.rewards, self.rows, strict=True) if str(row[column]) == value]
        return _mean(chosen)

    def __repr__(self) -> str:
        return f"Evaluation(accuracy {self.accuracy:.3f} on {len(self.rewards)} prompts, version {self.version})"


def _mean(rewards: Sequence[float]) -> float:
    """Over those that are scored; NaN where none is."""
    scored = [r for r in rewards if not math.isnan(r)]
    return sum(scored) / len(scored) if scored else float("nan")


def evaluate(
    policy: Policy,
    task: Task,
    *,
    num: int = 256,
    split: Split = "heldout",
    temperature: float = 0.0,
    max_new_tokens: int = 48,
    batch: int = 64,
    seed: int = 0,
) -> Evaluation:
    """Answer ``num`` prompts of a split once each, by default greedily, and score the answers.

    The weights are only read. The same arguments give the same prompts and, up to the weights, the same answers.
    """
    if num < 1 or batch < 1:
        raise ValueError(f"evaluating on {task.name}: found num={num} and batch={batch}; both must be at least 1")
    decode = Decode(policy.engine(), group=1, max_new_tokens=max_new_tokens, temperature=temperature)
    score = Reward(task)
    rows: Sequence[Any] = task.rows(num, split=split)
    rewards: list[float] = []
    groups: list[RolloutGroup] = []
    with tqdm(total=num, desc="evaluate", unit="prompt", delay=2, leave=False) as progress:
        for index in range(0, num, batch):
            prompts = policy.ingest.batch(rows[index : index + batch], step=index, seed=seed)
            rollout = decode(prompts)
            rewards += [float(group.values[0]) for group in score(prompts, rollout).groups]
            groups += rollout.groups
            progress.update(len(prompts))
    return Evaluation(rewards=tuple(rewards), rows=tuple(rows), groups=tuple(groups), version=policy.version)

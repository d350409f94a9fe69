"""Reward: scores of the responses, group by group, as soon as each group is complete."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import final

from rollplex.feed import Feed, Ready, Waiting
from rollplex.phases.phase import Phase, Tick
from rollplex.prompts import PromptBatch
from rollplex.rewards import Scorer
from rollplex.step import RewardGroup, Rewards, Rollout, RolloutGroup
from rollplex.task import RewardFunction, Task


@final
class Reward(Phase):
    """Score every response with a task's reward functions, or with functions given directly.

    >>> Reward([lambda completions, **_: [len(c) for c in completions]]).writes
    'rewards'
    """

    def __init__(
        self,
        task: Task | Sequence[RewardFunction],
        *,
        weights: Sequence[float] | None = None,
        timeout_s: float | None = None,
        nan_is_none: bool = False,
    ) -> None:
        functions = task if isinstance(task, Sequence) else task.rewards
        self.scorer = Scorer(functions, weights=weights, timeout_s=timeout_s, nan_is_none=nan_is_none)

    @property
    def name(self) -> str:
        """``reward``."""
        return "reward"

    @property
    def writes(self) -> str:
        """``rewards``."""
        return "rewards"

    def run(self, prompts: PromptBatch, rollout: Rollout | Feed[RolloutGroup]) -> Generator[Tick, None, Rewards]:
        """One tick a group."""
        scored: dict[int, RewardGroup] = {}
        for group in rollout.parts():
            if isinstance(group, Waiting):
                yield group
                continue
            scored[group.prompt] = self.scorer.score(group, prompts[group.prompt], step=prompts.step)
            yield Ready(scored[group.prompt], f"group {group.prompt}")
        return Rewards(groups=tuple(scored[prompt] for prompt in sorted(scored)), step=prompts.step)

"""The workloads that every bench measures: which prompts, how many responses, how long.

It knows sizes and rewards. It knows no engine, no schedule and no peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch

from rollplex.task import RewardFunction
from rollplex.tasks import Digits


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step's size.

    >>> WORKLOADS["default"].samples, WORKLOADS["input_heavy"].task.num_visual_tokens
    (64, 528)
    """

    name: str
    """Key in the benches' JSON."""
    task: Digits
    """Where rows come from."""
    prompts: int
    """Prompts of a step."""
    group: int
    """Responses to a prompt."""
    max_new_tokens: int
    """Longest response."""
    answers: Literal["reference", "full"]
    """How long responses are where lengths are forced: as the task's reference answers, or all as long as allowed."""

    @property
    def samples(self) -> int:
        """Responses of a step."""
        return self.prompts * self.group

    @property
    def rewards(self) -> Sequence[RewardFunction]:
        """The task's own, and one that always differs between siblings, so that every group has a gradient."""
        return (*self.task.rewards, checksum)

    @property
    def reward_weights(self) -> list[float]:
        """One a function."""
        return [*(1.0 for _ in self.task.rewards), 0.1]

    def lengths(self) -> torch.Tensor:
        """``[prompts, group]`` lengths to force, so that two engines do the same work.

        Reference answers are those to the first step's rows, end-of-sequence token included; in the shipped
        vocabulary a word is a token.
        """
        if self.answers == "full":
            return self.full_lengths()
        words = [len(self.task.solution(row).split()) for row in self.task.rows(self.prompts)]
        return torch.tensor(words).add(1).clamp(max=self.max_new_tokens)[:, None].repeat(1, self.group)

    def full_lengths(self) -> torch.Tensor:
        """``[prompts, group]``: every response as long as allowed."""
        return torch.full((self.prompts, self.group), self.max_new_tokens)


def checksum(*, completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """A number in [0, 1) that follows from a response's token ids and means nothing.

    >>> checksum(completion_ids=[[3, 4], [9, 9]])
    [0.07, 0.18]
    """
    return [sum(ids) % 100 / 100 for ids in completion_ids]


DEFAULT = Workload(name="default", task=Digits(seed=0), prompts=8, group=8, max_new_tokens=48, answers="reference")
INPUT_HEAVY = Workload(
    name="input_heavy", task=Digits.input_heavy(seed=0), prompts=8, group=8, max_new_tokens=32, answers="full"
)

WORKLOADS = MappingProxyType({each.name: each for each in (DEFAULT, INPUT_HEAVY)})
"""Those that every bench measures, by name."""

DEFAULT_FULL = replace(DEFAULT, name="default_full", answers="full")
"""The default task with every response at the limit, three times what an answer takes: the least that sharing saves."""


def workload(name: str) -> Workload:
    """The workload of a name, or an error that lists them.

    >>> workload("default").group
    8
    """
    known = {**WORKLOADS, DEFAULT_FULL.name: DEFAULT_FULL}
    if name not in known:
        raise ValueError(f"choosing a workload: there is none called {name!r}; use one of {', '.join(known)}")
    return known[name]

"""Reward: scores of whole groups, in whatever order groups complete."""

from __future__ import annotations

import pytest
import torch
from tiny_policy import checksum, prompts, responses, task, tiny

from rollplex.feed import WAITING, Feed, Ready
from rollplex.phases.reward import Reward
from rollplex.step import RolloutGroup

BATCH = prompts("mixed", step=2)
ROLLOUT = responses(tiny(), BATCH)[0]


def test_a_task_and_its_functions_score_alike() -> None:
    """A task stands for its reward functions."""
    one, two = Reward(task())(BATCH, ROLLOUT), Reward([checksum])(BATCH, ROLLOUT)
    assert torch.equal(one.values(), two.values())
    assert one.step == 2
    assert one.values().unique().numel() > 1


def test_a_tick_is_a_group() -> None:
    """Each is announced as soon as it has its scores."""
    ticks = list(Reward([checksum]).run(BATCH, ROLLOUT))
    assert [tick.label for tick in ticks if isinstance(tick, Ready)] == ["group 0", "group 1", "group 2"]


def test_groups_are_scored_as_they_come_and_kept_in_prompt_order() -> None:
    """From a feed that is still open: waiting is said, not done; the value does not depend on the order."""
    feed = Feed[RolloutGroup]()
    running = Reward([checksum]).run(BATCH, feed)
    assert next(running) is WAITING
    for prompt in (2, 0, 1):
        feed.append(ROLLOUT.groups[prompt])
        tick = next(running)
        assert isinstance(tick, Ready)
        assert tick.part.prompt == prompt
    feed.close()
    with pytest.raises(StopIteration) as stop:
        next(running)
    rewards = stop.value.value
    assert [group.prompt for group in rewards.groups] == [0, 1, 2]
    assert torch.equal(rewards.values(), Reward([checksum])(BATCH, ROLLOUT).values())


def test_columns_of_a_prompts_row_reach_its_own_group() -> None:
    """Group i is scored with the row of prompt i."""

    def asked(prompts: list[list[dict[str, object]]], **_: object) -> list[float]:
        return [float(len(p[0]["content"])) for p in prompts]  # type: ignore[arg-type]

    blocks = [len(prompt.row["prompt"][0]["content"]) for prompt in BATCH]
    assert len(set(blocks)) > 1
    assert [group.mean() for group in Reward([asked])(BATCH, ROLLOUT).groups] == blocks

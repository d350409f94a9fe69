"""Evaluation: one answer to each held-out prompt, the policy untouched."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tiny_policy import checksum, moved, phases, task, tiny

from rollplex.evaluate import Evaluation, evaluate
from rollplex.policy import Policy
from rollplex.run import Run


def scored(*rewards: float) -> Evaluation:
    """Of rows of two kinds, in turn."""
    rows = tuple({"kind": "ab"[i % 2], "easy": i < 2} for i in range(len(rewards)))
    return Evaluation(rewards=rewards, rows=rows, groups=(), version=0)


def run(policy: Policy, **options: Any) -> Evaluation:
    return evaluate(policy, task(), **{"num": 6, "max_new_tokens": 4, **options})


def test_each_held_out_prompt_is_answered_once() -> None:
    """Rows, rewards and responses belong together, in the task's order."""
    found = run(tiny(), batch=4)
    assert len(found.rewards) == len(found.rows) == len(found.groups) == 6
    assert list(found.rows) == task().rows(6, split="heldout")
    for reward, group in zip(found.rewards, found.groups, strict=True):
        assert group.size == 1
        assert [reward] == checksum([group.tokens[0, : group.lengths[0]].tolist()])
    assert found.accuracy == pytest.approx(sum(found.rewards) / 6)


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_greedy_answers_do_not_depend_on_the_batch(batch: int) -> None:
    """Nor on anything but weights and rows."""
    assert run(tiny(), batch=batch).rewards == run(tiny()).rewards


def test_the_policy_is_only_read() -> None:
    """Training goes on as if nobody had looked."""
    policies = tiny(), tiny()
    for i, policy in enumerate(policies):
        made = Run(task(), phases(policy), prompts=2)
        made.step()
        if i == 0:
            run(policy, temperature=1.0)
        made.step()
    assert moved(policies[0], policies[1].snapshot()) == 0


def test_answers_are_those_of_the_version_evaluated() -> None:
    """The report names it."""
    policy = tiny()
    list(Run(task(), phases(policy, lr=1e-2), prompts=2).steps(2))
    found = run(policy)
    assert found.version == 2
    assert found.rewards != run(tiny()).rewards


def test_accuracy_is_told_by_column() -> None:
    """For each value that a column has."""
    found = scored(1.0, 0.0, 0.0, 0.0, 1.0)
    assert found.accuracy == 0.4
    assert found.by("kind") == {"a": pytest.approx(2 / 3), "b": 0.0}
    assert found.by("easy") == {"True": 0.5, "False": pytest.approx(1 / 3)}


def test_responses_without_a_score_are_left_out_everywhere() -> None:
    """Of the accuracy and of its parts by column alike."""
    found = scored(math.nan, 1.0, 1.0, math.nan)
    assert found.accuracy == 1.0
    assert found.by("kind") == {"a": 1.0, "b": 1.0}


def test_where_nothing_is_scored_nothing_is_known() -> None:
    """Not zero."""
    found = scored(math.nan, 1.0, math.nan)
    assert math.isnan(found.by("kind")["a"])
    assert math.isnan(scored(math.nan).accuracy)


def test_it_says_what_was_found_in_a_line() -> None:
    """Accuracy, prompts and version."""
    assert repr(run(tiny())).endswith("on 6 prompts, version 0)")


@pytest.mark.parametrize("options", [{"num": 0}, {"batch": 0}])
def test_an_evaluation_of_nothing_is_refused(options: dict[str, Any]) -> None:
    """It would have no accuracy."""
    with pytest.raises(ValueError, match="must be at least 1"):
        run(tiny(), **options)

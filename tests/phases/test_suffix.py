"""Suffix: one gradient, however the responses are cut into microbatches, streamed, scored or left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_policy import gap, gradients, moved, phases, prompts, responses, shift, task, tiny, train

from rollplex.feed import Feed
from rollplex.losses import GRPO
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Reference
from rollplex.run import Run
from rollplex.step import RewardGroup, Rewards, Rollout, RolloutGroup

BATCH = prompts("mixed")
SAME = 1e-10
"""Of float64 gradients that differ by the order of their sums alone."""


def rewarded(rewards: Rewards, values: Sequence[Sequence[float]]) -> Rewards:
    groups = [
        replace(group, values=torch.tensor(row, dtype=torch.float64))
        for group, row in zip(rewards.groups, values, strict=True)
    ]
    return replace(rewards, groups=tuple(groups))


def without(rollout: Rollout, rewards: Rewards, prompt: int, sample: int) -> tuple[Rollout, Rewards]:
    """The same without one response."""
    kept = [j for j in range(rollout.groups[prompt].size) if j != sample]
    group, scores = rollout.groups[prompt], rewards.groups[prompt]
    smaller = replace(
        group,
        tokens=group.tokens[kept],
        lengths=group.lengths[kept],
        logprobs=group.logprobs[kept],
        finished=group.finished[kept],
        texts=tuple(group.texts[j] for j in kept),
    )
    groups = tuple(smaller if i == prompt else g for i, g in enumerate(rollout.groups))
    scored = tuple(
        replace(scores, values=scores.values[kept]) if i == prompt else g for i, g in enumerate(rewards.groups)
    )
    return replace(rollout, groups=groups), replace(rewards, groups=scored)


@pytest.mark.parametrize("cut", [{"microbatch": 1}, {"microbatch": 4}, {"prefix": {"microbatch_tokens": 1}}], ids=str)
def test_it_does_not_matter_how_the_work_is_cut(cut: dict[str, Any]) -> None:
    """Responses one by one or in fours, prompts one by one: the same loss and gradients."""
    policy = tiny()
    made = responses(policy, BATCH)
    expected, whole = train(policy, BATCH, *made)
    stats, parts = train(policy, BATCH, *made, **cut)
    assert stats.loss == pytest.approx(expected.loss)
    assert gap(whole, parts) < SAME
    for one, two in zip(expected.logprobs, stats.logprobs, strict=True):
        assert torch.allclose(one, two)


def test_recomputing_layers_changes_no_gradient() -> None:
    """Activation checkpointing of the responses saves memory alone."""
    policy = tiny()
    made = responses(policy, BATCH)
    assert gap(train(policy, BATCH, *made)[1], train(policy, BATCH, *made, checkpointed=True)[1]) < SAME


def test_running_it_again_gives_the_same_gradients() -> None:
    """The saved graph serves once; later the prefix is run again, and nothing is added to what was there."""
    policy = tiny()
    rollout, rewards = responses(policy, BATCH)
    prefix, suffix = Prefix(policy)(BATCH), Suffix(policy)
    found = []
    for _ in range(3):
        suffix(BATCH, prefix, rollout, rewards)
        found.append(gradients(policy))
    assert gap(found[0], found[1]) < SAME
    assert gap(found[1], found[2]) < SAME


def test_another_set_of_responses_on_the_same_prefix_starts_from_zero() -> None:
    """No gradient of an earlier suffix is left in the boundary or the weights."""
    policy = tiny()
    prefix, suffix = Prefix(policy)(BATCH), Suffix(policy)
    suffix(BATCH, prefix, *responses(policy, BATCH, seed=1))
    suffix(BATCH, prefix, *responses(policy, BATCH, seed=2))
    assert gap(train(policy, BATCH, *responses(policy, BATCH, seed=2))[1], gradients(policy)) < SAME


def test_a_response_without_a_score_is_as_if_it_were_not_there() -> None:
    """Its siblings get the advantages and weights of a group without it."""
    policy = tiny()
    rollout, rewards = responses(policy, BATCH, 4)
    values = [group.values.tolist() for group in rewards.groups]
    values[1][2] = float("nan")
    stats, found = train(policy, BATCH, rollout, rewarded(rewards, values))
    expected, smaller = train(policy, BATCH, *without(rollout, rewards, 1, 2))
    assert gap(smaller, found) < SAME
    assert (stats.loss, stats.num_tokens) == (pytest.approx(expected.loss), expected.num_tokens)
    assert float(stats.advantages[1][2]) == 0
    assert gap(train(policy, BATCH, rollout, rewards)[1], found) > SAME, "the control: with its score it counts"


def test_equal_rewards_teach_nothing() -> None:
    """Zero gradients, and an update that leaves every weight as it is; unequal ones are the control."""
    policy = tiny()
    before = policy.snapshot()
    rollout, rewards = responses(policy, BATCH)
    for values, teaches in (([[1.0] * 3] * 3, False), ([[1.0, 0.0, 0.0]] * 3, True)):
        stats, found = train(policy, BATCH, rollout, rewarded(rewards, values))
        assert any(bool(g.any()) for g in found.values()) is teaches
        assert stats.groups_without_signal == (0 if teaches else 3)
        Update(policy)(stats)
        assert (moved(policy, before) > 0) is teaches
        policy.restore(before, version=0)


def test_no_score_at_all_is_a_loss_of_zero() -> None:
    """Not a division by zero."""
    policy = tiny()
    rollout, rewards = responses(policy, BATCH)
    stats, found = train(policy, BATCH, rollout, rewarded(rewards, [[float("nan")] * 3] * 3))
    assert (stats.loss, stats.num_tokens, stats.entropy) == (0.0, 0, 0.0)
    assert not any(bool(g.any()) for g in found.values())


@pytest.mark.parametrize("masked", [True, False])
def test_a_truncated_response_can_be_left_out(masked: bool) -> None:
    """With the mask its tokens do not matter; without it (the control) they do."""
    policy = tiny()
    rollout, rewards = responses(policy, BATCH)
    group = rollout.groups[2]
    finished = group.finished.clone()
    finished[1] = False
    other = group.tokens.clone()
    other[1] = other[1].flip(0) + 1
    found = []
    for tokens in (group.tokens, other):
        changed = replace(group, finished=finished, tokens=tokens)
        made = replace(rollout, groups=(*rollout.groups[:2], changed))
        stats, of_tokens = train(policy, BATCH, made, rewards, loss=GRPO(mask_truncated=masked))
        found.append(of_tokens)
    assert (gap(*found) < SAME) is masked
    left_out = int(group.lengths[1]) if masked else 0
    assert stats.num_tokens == rollout.num_tokens - left_out


def streamed(policy: Any, rollout: Rollout, rewards: Rewards, order: Sequence[int], loss: GRPO, **prefix: Any) -> Any:
    """Groups arrive one by one, with a turn in between; returns the ticks and the figures."""
    groups, scores = Feed[RolloutGroup](), Feed[RewardGroup]()
    reference = Reference(policy) if loss.needs_reference else None
    twin = None if reference is None else Prefix(reference, **prefix)(BATCH)
    state = Prefix(policy, **prefix)(BATCH)
    running = Suffix(policy, reference, loss=loss).run(BATCH, state, groups, scores, twin)
    ticks = [next(running)]
    for prompt in order:
        groups.append(rollout.groups[prompt])
        scores.append(rewards.groups[prompt])
        ticks.append(next(running))
    scores.close()
    groups.close()
    while True:
        try:
            ticks.append(next(running))
        except StopIteration as stop:
            return ticks, stop.value


@pytest.mark.parametrize("scale", ["group", "batch"])
@pytest.mark.parametrize("prefix", [{}, {"microbatch_tokens": 1}], ids=["one boundary", "a boundary a prompt"])
def test_groups_may_arrive_one_by_one_in_any_order(scale: Any, prefix: dict[str, Any]) -> None:
    """The loss and gradients of a stream are those of the whole, although the denominator is known last."""
    policy, loss = tiny(), GRPO(scale_rewards=scale, loss_type="dapo")
    rollout, rewards = responses(policy, BATCH)
    expected, whole = train(policy, BATCH, rollout, rewards, loss=loss)
    ticks, stats = streamed(policy, rollout, rewards, [2, 0, 1], loss, **prefix)
    assert gap(whole, gradients(policy)) < SAME
    assert stats.loss == pytest.approx(expected.loss)
    assert all(torch.allclose(a, b) for a, b in zip(stats.advantages, expected.advantages, strict=True))
    working = [str(tick) for tick in ticks[:4]]
    assert ("3 responses" in working) is (scale == "group"), "whether it can begin before all rewards are there"


def test_the_reference_pulls_the_policy_back() -> None:
    """With a KL term and equal rewards the gradient is that of the KL alone: zero at the reference, not beside it."""
    policy = tiny()
    reference = Reference(policy)
    suffix = Suffix(policy, reference, loss=GRPO(beta=0.1))
    for size, pulls in ((0.0, False), (0.01, True)):
        shift(policy, size)
        rollout, rewards = responses(policy, BATCH)
        equal = rewarded(rewards, [[1.0] * 3] * 3)
        stats = suffix(BATCH, Prefix(policy)(BATCH), rollout, equal, Prefix(reference)(BATCH))
        norm = max(float(g.abs().max()) for g in gradients(policy).values())
        assert (stats.kl > 1e-9, norm > 1e-9) == (pulls, pulls)
        assert stats.loss == pytest.approx(0.1 * stats.kl, rel=0.5)


def test_engine_and_trainer_agree_on_what_was_sampled() -> None:
    """The figures carry the trainer's log-probabilities and their distance from the engine's."""
    policy = tiny()
    rollout = Decode(policy.engine(), group=3, max_new_tokens=6)(BATCH)
    rewards = responses(policy, BATCH)[1]
    stats, _ = train(policy, BATCH, rollout, rewards)
    assert 0 <= stats.mismatch_mean <= stats.mismatch_max < 1e-9
    for group, logprobs in zip(rollout.groups, stats.logprobs, strict=True):
        for one, two, length in zip(group.logprobs, logprobs, group.lengths.tolist(), strict=True):
            assert torch.allclose(one[:length], two[:length])
    wrong = tuple(replace(group, logprobs=group.logprobs - 0.5) for group in rollout.groups)
    stats, _ = train(policy, BATCH, replace(rollout, groups=wrong), rewards)
    assert stats.mismatch_mean > 1e-3, "the control: an engine that says something else is seen"


def test_a_cut_distribution_is_not_compared() -> None:
    """With top-k the engine's log-probabilities are of another distribution than the trainer's."""
    policy = tiny()
    rollout = Decode(policy.engine(), group=3, max_new_tokens=4, top_k=5)(BATCH)
    stats, _ = train(policy, BATCH, rollout, responses(policy, BATCH)[1])
    assert stats.mismatch_mean != stats.mismatch_mean
    assert stats.mismatch_max != stats.mismatch_max


def test_the_ratio_may_be_to_the_engine() -> None:
    """Then engine log-probabilities that differ from the trainer's weigh and clip tokens."""
    policy = tiny()
    rollout, rewards = responses(policy, BATCH)  # the engine's log-probabilities are all 0: ratios far below 1
    stats, found = train(policy, BATCH, rollout, rewards, loss=GRPO(old_logprobs="rollout"))
    assert stats.clip_ratio > 0
    on_policy, expected = train(policy, BATCH, rollout, rewards)
    assert on_policy.clip_ratio == 0
    assert gap(expected, found) > 0.1


def test_text_alone_leaves_the_vision_tower_a_gradient_of_zero() -> None:
    """Not None: the buffers are always there, for the norm and the optimizer. With pictures they are filled."""
    policy = tiny()
    for case, sees in (("text only", False), ("one image", True)):
        batch = prompts(case)
        _, found = train(policy, batch, *responses(policy, batch))
        vision = [g for name, g in found.items() if "visual" in name]
        named = dict(policy.model.module.named_parameters())
        assert len(vision) == sum("visual" in name for name in named)
        assert any(bool(g.any()) for g in vision) is sees
        assert all(p.grad is not None for p in named.values())


def test_learning_makes_good_responses_likelier() -> None:
    """A few steps of a reward for one token raise its share: signs are right from reward to weights."""
    policy, wanted = tiny(torch.float32), 40

    def share(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [sum(i % 4 == wanted % 4 for i in ids) / len(ids) for ids in completion_ids]

    run = Run(task(), phases(policy, rewards=[share], lr=3e-3, group=8, max_new_tokens=8), prompts=2)
    means = [step.rewards.mean() for step in run.steps(6) if step.rewards is not None]
    assert sum(means[-2:]) > sum(means[:2]) + 0.1

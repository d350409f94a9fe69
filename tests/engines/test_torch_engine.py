"""The built-in engine: a response is the same whoever else is in the batch, and its log-probabilities are the model's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rollouts import BATCH, decode, ending, same
from tiny_policy import prompts, shift, take, tiny

from rollplex.feed import Ready
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.policy import StaleError
from rollplex.step import RolloutGroup
from rollplex.verify import plain

LENGTHS = torch.tensor([[1, 12, 3, 7], [2, 2, 1, 1], [12, 5, 5, 9]])
"""Ragged: a whole group ends early, a response goes on alone."""


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_logprobs_are_those_of_a_full_forward(temperature: float) -> None:
    """transformers' own forward over prompt and response, each response by itself."""
    policy = tiny()
    rollout = decode(policy, temperature=temperature, lengths=LENGTHS)
    with torch.no_grad():
        for prompt, group in zip(BATCH, rollout.groups, strict=True):
            for tokens, logprobs, n in zip(group.tokens, group.logprobs, group.lengths.tolist(), strict=True):
                full = plain.logprobs(policy.model.module, prompt, tokens[:n], group.sampling)
                assert torch.allclose(full, logprobs[:n], atol=1e-10)


def test_lengths_that_are_asked_for_are_given() -> None:
    """End-of-sequence tokens or not."""
    policy = ending(tiny(), *range(0, 400, 2))
    rollout = decode(policy, lengths=LENGTHS)
    assert torch.equal(torch.stack([group.lengths for group in rollout.groups]), LENGTHS)
    assert not any(bool(group.finished.any()) for group in rollout.groups)


def test_responses_that_leave_do_not_disturb_those_that_stay() -> None:
    """A ragged batch that shrinks gives what a batch gives in which nobody leaves."""
    policy = tiny()
    ragged, full = (decode(policy, lengths=lengths) for lengths in (LENGTHS, torch.full_like(LENGTHS, 12)))
    for one, two in zip(ragged.groups, full.groups, strict=True):
        same(one, two)


@pytest.mark.parametrize("others", [(0,), (0, 1)], ids=["alone", "without the last"])
def test_a_response_does_not_depend_on_other_prompts(others: tuple[int, ...]) -> None:
    """Its randomness belongs to (seed, step, prompt, sample), its logits to its own prompt."""
    policy = tiny()
    whole, part = decode(policy), decode(policy, take(BATCH, *others))
    for one, two in zip(part.groups, whole.groups, strict=False):
        assert torch.equal(one.lengths, two.lengths)
        same(one, two)


def test_a_response_does_not_depend_on_its_siblings() -> None:
    """The first two of four are the two of a group of two; a group of one is the first."""
    policy = tiny()
    four = decode(policy)
    for group in (2, 1):
        for one, two in zip(decode(policy, group=group).groups, four.groups, strict=True):
            assert one.size == group
            assert torch.equal(one.lengths, two.lengths[:group])
            same(one, two)


def test_siblings_differ() -> None:
    """The control: responses are not all the same, nor are those of another seed or step."""
    policy = tiny()
    first = decode(policy, lengths=torch.full((3, 4), 12)).groups[0].tokens
    assert len({tuple(row) for row in first.tolist()}) == 4
    for other in ({"seed": 9}, {"step": 9}):
        again = decode(policy, replace(BATCH, **other), lengths=torch.full((3, 4), 12)).groups[0].tokens  # type: ignore[arg-type]
        assert not torch.equal(first, again)


def test_prompts_of_very_different_lengths_may_run_in_several_prefills() -> None:
    """One boundary or one for each prompt, ragged or not: the same responses."""
    policy = tiny()
    batch = take(replace(BATCH, prompts=(*BATCH, *prompts("several images of different sizes"))), 3, 0, 1)
    assert max(p.length for p in batch) > 3 * min(p.length for p in batch)
    one, several = (decode(policy, batch, lengths=LENGTHS, engine={"microbatch_tokens": n}) for n in (8192, 1))
    for a, b in zip(one.groups, several.groups, strict=True):
        assert a.prompt == b.prompt
        same(a, b)


@pytest.mark.parametrize("num", [4, 5, 100])
def test_looking_less_often_for_ends_changes_no_response(num: int) -> None:
    """Tokens drawn past an end are not part of a response."""
    policy = ending(tiny(), *range(0, 400, 3))
    one, other = (decode(policy, engine={"check_every": n}) for n in (1, num))
    for a, b in zip(one.groups, other.groups, strict=True):
        assert torch.equal(a.lengths, b.lengths)
        assert torch.equal(a.finished, b.finished)
        assert a.texts == b.texts
        same(a, b)
    assert sum(int(g.lengths.max()) for g in one.groups) > 1, "the control: some responses have several tokens"


def test_groups_are_announced_as_they_complete() -> None:
    """Each once, whole, before the rollout ends, and equal to what the rollout has."""
    policy = tiny()
    running = Decode(policy.engine(), group=4, max_new_tokens=12, lengths=LENGTHS).run(BATCH)
    announced: dict[int, RolloutGroup] = {}
    tokens = 0
    seen_at = {}
    while True:
        try:
            tick = next(running)
        except StopIteration as stop:
            rollout = stop.value
            break
        tokens += isinstance(tick, str) and tick.startswith("token")
        if isinstance(tick, Ready):
            announced[tick.part.prompt] = tick.part
            seen_at[tick.part.prompt] = tokens
    assert list(announced) == [1, 0, 2]
    assert seen_at[1] < seen_at[0]
    for group in rollout.groups:
        part = announced[group.prompt]
        assert torch.equal(part.tokens, group.tokens)
        assert torch.equal(part.logprobs, group.logprobs)
        assert part.texts == group.texts


def test_a_boundary_of_older_weights_is_refused() -> None:
    """Decode would go on from keys of weights that are gone."""
    policy = tiny()
    state = Prefix(policy)(BATCH)
    policy.version += 1
    with pytest.raises(StaleError, match="prefix of weight version 0"):
        Decode(policy.engine(), group=1, max_new_tokens=2)(BATCH, state)


def test_an_update_while_decoding_is_noticed() -> None:
    """A rollout of two versions is not handed out."""
    policy = tiny()
    running = Decode(policy.engine(), group=1, max_new_tokens=6, lengths=torch.full((3, 1), 6)).run(BATCH)
    next(running)
    policy.version += 1
    with pytest.raises(StaleError, match="rollout of weight version 0"):
        for _ in running:
            pass


def test_it_samples_with_the_weights_as_they_are_now() -> None:
    """After the weights changed in place the next rollout is another, with the new version."""
    policy = tiny()
    engine = Decode(policy.engine(), group=4, max_new_tokens=8)
    before = engine(BATCH)
    shift(policy, 0.05)
    policy.version = 1
    after = engine(BATCH)
    assert (before.version, after.version) == (0, 1)
    assert any(
        not torch.equal(a.logprobs[:, :1], b.logprobs[:, :1]) for a, b in zip(before.groups, after.groups, strict=True)
    )


def test_the_cache_serves_smaller_rollouts_and_grows_for_larger_ones() -> None:
    """What an earlier rollout left in it reaches no later one."""
    policy = tiny()
    engine = policy.engine()
    sizes = []
    for group, tokens in ((4, 12), (1, 3), (4, 12), (5, 13)):
        used = Decode(engine, group=group, max_new_tokens=tokens)(BATCH)
        fresh = Decode(policy.engine(), group=group, max_new_tokens=tokens)(BATCH)
        sizes.append(engine.cache.nbytes)
        for one, two in zip(used.groups, fresh.groups, strict=True):
            assert torch.equal(one.lengths, two.lengths)
            same(one, two)
    assert sizes[0] == sizes[1] == sizes[2] < sizes[3]
    engine.cache.release()
    assert engine.held() == {}


def test_one_shared_generator_makes_responses_depend_on_each_other() -> None:
    """The control of everything above: without numbers of its own a response changes with its company."""
    policy = tiny()
    full = [
        decode(
            policy,
            batch,
            engine={"generator": torch.Generator().manual_seed(0)},
            lengths=torch.full((len(batch), 4), 12),
        )
        for batch in (BATCH, take(BATCH, 0))
    ]
    assert not torch.equal(full[0].groups[0].tokens, full[1].groups[0].tokens)


def test_autograd_is_on_between_ticks() -> None:
    """Decoding needs no gradient, but whoever has the next turn may."""
    for _ in Decode(tiny().engine(), group=2, max_new_tokens=3).run(BATCH):
        assert torch.is_grad_enabled()

"""The built-in engine: a response is the same whoever else is in the batch, and its log-probabilities are the model's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_policy import prompts, shift, take, tiny

from rollplex.feed import Ready
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.policy import Policy, StaleError
from rollplex.prompts import PromptBatch
from rollplex.sampling import Sampling
from rollplex.step import Rollout, RolloutGroup
from rollplex.verify import plain

BATCH = prompts("mixed", seed=1)
LENGTHS = torch.tensor([[1, 12, 3, 7], [2, 2, 1, 1], [12, 5, 5, 9]])
"""Ragged: a whole group ends early, a response goes on alone."""


def decode(
    policy: Policy, batch: PromptBatch = BATCH, *, engine: dict[str, Any] | None = None, **options: Any
) -> Rollout:
    options = {"group": 4, "max_new_tokens": 12, **options}
    return Decode(policy.engine(**(engine or {})), **options)(batch)


def same(one: RolloutGroup, two: RolloutGroup) -> None:
    """Tokens are equal and log-probabilities agree, as far as both responses go."""
    for j, (a, b) in enumerate(zip(one.lengths.tolist(), two.lengths.tolist(), strict=False)):
        n = min(a, b)
        assert torch.equal(one.tokens[j, :n], two.tokens[j, :n])
        assert torch.allclose(one.logprobs[j, :n], two.logprobs[j, :n], atol=1e-10)


def ending(policy: Policy, *eos_ids: int) -> Policy:
    """The same weights with other ends."""
    policy.model = replace(policy.model, eos_ids=eos_ids)
    return policy


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


def test_every_end_token_ends_a_response() -> None:
    """All that the model names, not only the first; a response holds one, at its end, unless it was cut."""
    ids = tuple(range(0, 400, 3))
    rollout = decode(ending(tiny(), *ids), group=16)
    ends = set()
    for group in rollout.groups:
        for tokens, n, finished in zip(group.tokens.tolist(), group.lengths.tolist(), group.finished, strict=True):
            inside = [token in ids for token in tokens[:n]]
            assert inside[-1] is bool(finished)
            assert not any(inside[:-1])
            assert n == 12 or finished
            ends.add(tokens[n - 1])
    assert len(ends & set(ids)) > 3


def test_a_response_of_one_token_is_a_response() -> None:
    """The first token comes from the prompt alone."""
    policy = tiny()
    one, many = decode(policy, max_new_tokens=1), decode(policy, lengths=torch.full((3, 4), 12))
    for a, b in zip(one.groups, many.groups, strict=True):
        assert a.tokens.shape == (4, 1)
        same(a, b)


def test_greedy_takes_what_the_full_forward_finds_most_probable() -> None:
    """As transformers' own generate does; siblings are then the same."""
    policy = tiny()
    rollout = decode(policy, temperature=0, group=2, lengths=torch.full((3, 2), 6), max_new_tokens=6)
    module: Any = policy.model.module
    for prompt, group in zip(BATCH, rollout.groups, strict=True):
        assert torch.equal(group.tokens[0], group.tokens[1])
        ids = prompt.input_ids[None]
        inputs = {"pixel_values": prompt.pixel_values, "image_grid_thw": prompt.image_grid_thw}
        if prompt.num_videos:
            inputs |= {"pixel_values_videos": prompt.pixel_values_videos, "video_grid_thw": prompt.video_grid_thw}
            inputs |= {"second_per_grid_ts": torch.tensor(prompt.second_per_grid_ts)}
        made = module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=plain.token_kinds(module, prompt)[None],
            **(inputs if prompt.num_images else {}),
            do_sample=False,
            min_new_tokens=6,
            max_new_tokens=6,
            suppress_tokens=[*policy.model.placeholder_ids],
            eos_token_id=[],
            pad_token_id=policy.model.pad_id,
        )
        assert made[0, prompt.length :].tolist() == group.tokens[0].tolist()


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.3}], ids=str)
def test_a_cut_distribution_gives_no_token_outside_it(cut: dict[str, Any]) -> None:
    """Every token is among those kept, at the log-probability it has among them."""
    policy = tiny()
    rollout = decode(policy, **cut, temperature=1.3)
    sampling = rollout.sampling
    whole = Sampling(temperature=1.3, banned=sampling.banned)
    for prompt, group in zip(BATCH, rollout.groups, strict=True):
        for tokens, logprobs, n in zip(group.tokens, group.logprobs, group.lengths.tolist(), strict=True):
            assert bool(logprobs[:n].isfinite().all())
            full = plain.logprobs(policy.model.module, prompt, tokens[:n], whole).detach()
            assert bool((logprobs[:n] >= full - 1e-9).all()), "what is left has more than it had"
            if "top_k" in cut:
                assert float(full.min()) < float(logprobs[:n].min())


def test_visual_placeholders_are_never_sampled() -> None:
    """At a temperature so high that every other token comes up; unbanned (the control) they come up too."""
    policy = tiny()
    lengths = torch.full((3, 24), 24)
    seen = []
    for banned in (policy.model.placeholder_ids, ()):
        made = Decode(policy.engine(), group=24, max_new_tokens=24, temperature=1e3, lengths=lengths)
        made.sampling = replace(made.sampling, banned=banned)
        tokens = torch.cat([group.tokens.flatten() for group in made(BATCH).groups])
        seen.append([int((tokens == i).sum()) for i in policy.model.placeholder_ids])
    assert seen[0] == [0, 0]
    assert min(seen[1]) > 0


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


def test_texts_are_the_tokens_without_special_ones() -> None:
    """As the tokenizer reads them, cut at the length."""
    policy = ending(tiny(), *range(0, 400, 3))
    for group in decode(policy).groups:
        for text, tokens, n in zip(group.texts, group.tokens, group.lengths.tolist(), strict=True):
            assert text == policy.ingest.processor.tokenizer.decode(tokens[:n], skip_special_tokens=True)


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

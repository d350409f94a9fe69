"""Which tokens the built-in engine draws: ends, bans, cut distributions, greedy ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from rollouts import BATCH, decode, ending, same
from tiny_policy import tiny

from rollplex.phases.decode import Decode
from rollplex.sampling import Sampling
from rollplex.verify import plain


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


def test_texts_are_the_tokens_without_special_ones() -> None:
    """As the tokenizer reads them, cut at the length."""
    policy = ending(tiny(), *range(0, 400, 3))
    for group in decode(policy).groups:
        for text, tokens, n in zip(group.texts, group.tokens, group.lengths.tolist(), strict=True):
            assert text == policy.ingest.processor.tokenizer.decode(tokens[:n], skip_special_tokens=True)

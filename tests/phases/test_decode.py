"""Decode: a request to an engine, and what the borrow rule has to know of it."""

from __future__ import annotations

import pytest
import torch
from tiny_policy import prompts, tiny

from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix

BATCH = prompts("mixed", step=4, seed=2)


def test_a_rollout_carries_where_it_came_from() -> None:
    """Version, step, seed and distribution."""
    policy = tiny()
    policy.version = 3
    rollout = Decode(policy.engine(), group=2, max_new_tokens=3, temperature=0.7, top_p=0.9, top_k=20)(BATCH)
    assert (rollout.version, rollout.step) == (3, 4)
    sampling = rollout.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 20)
    assert sampling.banned == policy.model.placeholder_ids
    assert all(group.version == 3 and group.sampling == sampling for group in rollout.groups)


def test_groups_have_the_size_and_limit_asked_for() -> None:
    """One group a prompt, in prompt order."""
    rollout = Decode(tiny().engine(), group=4, max_new_tokens=3)(BATCH)
    assert [group.prompt for group in rollout.groups] == [0, 1, 2]
    assert all(group.size == 4 and group.tokens.shape[0] == 4 for group in rollout.groups)
    assert all(1 <= int(n) <= 3 for group in rollout.groups for n in group.lengths)


def test_starting_from_the_actors_boundary_gives_the_same_rollout() -> None:
    """The same weights and prompts: no prefill is run, and no token changes."""
    policy = tiny()
    decode = Decode(policy.engine(), group=3, max_new_tokens=6)
    own, handed = decode(BATCH), decode(BATCH, Prefix(policy, tape="recompute")(BATCH))
    ticks = [len(list(decode.run(BATCH, *state))) for state in ((), (Prefix(policy)(BATCH),))]
    assert ticks[0] - ticks[1] == 1 + len(policy.model.text.layers)
    for one, two in zip(own.groups, handed.groups, strict=True):
        assert torch.equal(one.lengths, two.lengths)
        assert all(torch.equal(a[:n], b[:n]) for a, b, n in zip(one.tokens, two.tokens, one.lengths, strict=True))


def test_it_reads_the_engines_weights_and_holds_its_cache() -> None:
    """What a borrow check and a memory sample need."""
    policy = tiny()
    decode = Decode(policy.engine(), group=2, max_new_tokens=20)
    assert decode.reads[0].overlaps(policy.weights)
    assert decode.held() == {}
    decode(BATCH)
    layer = policy.model.text.layers[0]
    line = len(policy.model.text.layers) * 2 * layer.num_kv_heads * layer.head_dim * 20 * 8
    assert decode.held() == {"rollout.kv": 3 * 2 * line}


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -3}], ids=str)
def test_a_distribution_that_is_none_is_refused_at_once(wrong: dict[str, float]) -> None:
    """When the phase is made, not in the middle of a step."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
        Decode(tiny().engine(), **wrong)  # type: ignore[arg-type]

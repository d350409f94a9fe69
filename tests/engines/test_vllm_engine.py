"""vLLM on the policy's own bytes: the same tokens, the same log-probabilities, after every update. Needs vLLM."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rollouts import ending
from tiny_policy import prompts
from vllm_rollouts import BATCH, LIMIT, NEEDS_VLLM, decode, gap, start

from rollplex.engines.vllm_engine import VllmEngine
from rollplex.feed import Ready
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.policy import Policy, StaleError
from rollplex.verify import cases

pytestmark = NEEDS_VLLM

LENGTHS = torch.tensor([[1, 12, 3, 7], [2, 2, 1, 1], [12, 5, 5, 9]])


def test_every_parameter_is_the_policys_bytes(policy: Policy, engine: VllmEngine) -> None:
    """Told by address, and by writing through one side."""
    assert engine.share == 1
    assert engine.weights.storages() == policy.weights.storages()
    norm = policy.model.leaves["model.language_model.norm.weight"]
    assert engine.parameters()["language_model.model.norm.weight"].data_ptr() == norm.data_ptr()


def test_it_draws_the_tokens_of_the_built_in_engine(policy: Policy, engine: VllmEngine) -> None:
    """The same distribution and the same numbers: log-probabilities agree too."""
    ours, theirs = Decode(policy.engine(), group=4, max_new_tokens=12)(BATCH), decode(engine)
    for one, two in zip(ours.groups, theirs.groups, strict=True):
        assert torch.equal(one.lengths, two.lengths)
        assert torch.equal(one.finished, two.finished)
        assert one.texts == two.texts
        for a, b, n in zip(one.logprobs, two.logprobs, one.lengths.tolist(), strict=True):
            assert torch.allclose(a[:n], b[:n], atol=LIMIT, rtol=0)


def test_it_scores_given_tokens_as_the_built_in_engine_did(policy: Policy, engine: VllmEngine) -> None:
    rollout = Decode(policy.engine(), group=4, max_new_tokens=12, temperature=0.8, lengths=LENGTHS)(BATCH)
    for group, scores in zip(rollout.groups, engine.logprobs(BATCH, rollout), strict=True):
        for a, b, n in zip(group.logprobs, scores, group.lengths.tolist(), strict=True):
            assert torch.allclose(a[:n], b[:n], atol=LIMIT, rtol=0)


@pytest.mark.parametrize("case", cases.CASES)
def test_logprobs_are_those_of_a_full_forward(policy: Policy, engine: VllmEngine, case: str) -> None:
    """Every kind of prompt, vLLM's own vision tower and positions."""
    batch = prompts(case)
    assert gap(policy, batch, decode(engine, batch, max_new_tokens=6)) < LIMIT


def test_another_temperature_would_be_noticed(policy: Policy, engine: VllmEngine) -> None:
    """The control of the comparison above."""
    rollout = decode(engine, temperature=0.8)
    hot = replace(
        rollout, groups=tuple(replace(g, sampling=replace(g.sampling, temperature=1.0)) for g in rollout.groups)
    )
    assert gap(policy, BATCH, rollout) < LIMIT < gap(policy, BATCH, hot)


def test_lengths_that_are_asked_for_are_given(engine: VllmEngine) -> None:
    rollout = decode(engine, lengths=LENGTHS)
    assert torch.equal(torch.stack([group.lengths for group in rollout.groups]), LENGTHS)


def test_an_end_of_sequence_token_ends_a_response(
    policy: Policy, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last token, and counted; the same responses are cut elsewhere."""
    monkeypatch.setattr(policy, "model", ending(Policy(policy.model, policy.ingest), *range(0, 400, 3)).model)
    rollout = decode(engine)
    for group in rollout.groups:
        for tokens, n, finished in zip(group.tokens, group.lengths.tolist(), group.finished, strict=True):
            ends = torch.isin(tokens[:n], torch.tensor(policy.model.eos_ids)).tolist()
            assert not any(ends[:-1])
            assert ends[-1] == bool(finished)
    assert any(bool(group.finished.any()) for group in rollout.groups)


def test_groups_are_announced_as_they_complete(engine: VllmEngine) -> None:
    """Tick by tick, autograd on in between, nothing left in the cache afterwards."""
    running = Decode(engine, group=4, max_new_tokens=12, lengths=LENGTHS).run(BATCH)
    announced, held = [], 0
    for tick in running:
        assert torch.is_grad_enabled()
        held = max(held, engine.held().get("rollout.kv", 0))
        if isinstance(tick, Ready):
            announced.append(tick.part.prompt)
    assert announced == [1, 0, 2]
    assert held > 0
    assert engine.held() == {}


def test_a_rollout_that_is_given_up_leaves_the_engine_ready(engine: VllmEngine) -> None:
    """And while it runs, another is refused."""
    whole = decode(engine)
    running = Decode(engine, group=4, max_new_tokens=12).run(BATCH)
    while not str(next(running)).startswith("token 3"):
        pass
    with pytest.raises(RuntimeError, match="serving another rollout"):
        decode(engine)
    running.close()
    assert engine.held() == {}
    for one, two in zip(whole.groups, decode(engine).groups, strict=True):
        assert torch.equal(one.tokens, two.tokens)


def test_an_update_while_decoding_is_noticed(policy: Policy, engine: VllmEngine) -> None:
    running = Decode(engine, group=1, max_new_tokens=4).run(BATCH)
    next(running)
    policy.version += 1
    try:
        with pytest.raises(StaleError, match="using a rollout of weight version"):
            for _ in running:
                pass
    finally:
        policy.version -= 1


def test_a_replaced_parameter_is_named(policy: Policy, engine: VllmEngine) -> None:
    """Both sides of it; nothing is decoded with it."""
    parameter = engine.parameters()["language_model.model.layers.0.self_attn.qkv_proj.weight"]
    kept = parameter.data
    parameter.data = kept.clone()
    try:
        with pytest.raises(
            RuntimeError, match=r"qkv_proj\.weight is .*model\.language_model\.layers\.0\.self_attn\.qkv_proj"
        ):
            decode(engine)
    finally:
        parameter.data = kept
    decode(engine, group=1, max_new_tokens=1)


def test_the_actors_boundary_is_refused(policy: Policy, engine: VllmEngine) -> None:
    with pytest.raises(ValueError, match="vLLM has no way in for keys and values"):
        Decode(engine, group=1, max_new_tokens=2)(BATCH, Prefix(policy)(BATCH))


def test_a_response_beyond_the_longest_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(ValueError, match="max_length=1024"):
        decode(engine, max_new_tokens=1024)


def test_a_second_engine_is_refused_while_one_is_open(policy: Policy, engine: VllmEngine) -> None:
    with pytest.raises(RuntimeError, match="already has a torch distributed process group"):
        start(policy)


def test_top_p_and_top_k_are_the_built_in_engines(policy: Policy, engine: VllmEngine) -> None:
    options = {"group": 2, "max_new_tokens": 6, "top_p": 0.7, "top_k": 40}
    ours, theirs = Decode(policy.engine(), **options)(BATCH), Decode(engine, **options)(BATCH)
    for one, two in zip(ours.groups, theirs.groups, strict=True):
        assert torch.equal(one.tokens, two.tokens)


def test_greedy_takes_the_most_probable_token(policy: Policy, engine: VllmEngine) -> None:
    ours, theirs = (Decode(e, group=1, max_new_tokens=5, temperature=0)(BATCH) for e in (policy.engine(), engine))
    for one, two in zip(ours.groups, theirs.groups, strict=True):
        assert torch.equal(one.tokens, two.tokens)

"""Engines over vLLM that are closed, made again, or kept from forgetting. Needs vLLM."""

from __future__ import annotations

import weakref

import pytest
import torch
from tiny_policy import prompts, shift, tiny
from vllm_rollouts import BATCH, LIMIT, NEEDS_VLLM, decode, gap, start

pytestmark = NEEDS_VLLM


def test_a_closed_engine_is_gone_and_a_new_one_can_be_made() -> None:
    """Model, process group and caches; the policy's weights stay."""
    policy, threads = tiny(torch.float32), torch.get_num_threads()
    weights = policy.snapshot()
    tokens = []
    for _ in range(2):
        engine = start(policy)
        assert torch.get_num_threads() == threads
        norm = weakref.ref(engine.parameters()["language_model.model.norm.weight"])
        tokens.append(decode(engine).groups[0].tokens)
        engine.close()
        engine.close()
        assert norm() is None
        assert not torch.distributed.is_initialized()
        with pytest.raises(RuntimeError, match="it was closed"):
            decode(engine)
    assert torch.equal(*tokens)
    assert all(torch.equal(leaf, weights[name]) for name, leaf in policy.model.leaves.items())


def test_handing_features_over_runs_the_policys_tower_and_not_vllms() -> None:
    """Images and videos: with vLLM's tower broken, the log-probabilities are still right."""
    policy = tiny(torch.float32)
    with start(policy, vision="policy") as engine:
        assert engine._vllm is not None
        engine._vllm._runner.model.visual.forward = None
        for case in ("mixed", "several images of different sizes"):
            batch = prompts(case)
            assert gap(policy, batch, decode(engine, batch, max_new_tokens=4)) < LIMIT


def test_stale_caches_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the reset, pictures of one name are those of the old weights; with it they are not."""
    policy = tiny(torch.float32)
    with start(policy) as engine:
        gaps = []
        for forgets in (True, False):
            for version in (1, 2):
                if not forgets:
                    monkeypatch.setattr(engine, "_forget", lambda _: None)
                engine._num_prompts = 0
                rollout = decode(engine, max_new_tokens=4)
                if version == 2:
                    gaps.append(gap(policy, BATCH, rollout))
                shift(policy, 0.02)
                policy.version += 1
        monkeypatch.undo()
    assert gaps[0] < LIMIT
    assert gaps[1] > 1e-2


def test_a_start_that_fails_is_not_in_the_way_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is ours; the process group that vLLM had made is gone."""
    policy = tiny(torch.float32)
    monkeypatch.setitem(policy.model.fused.leaves, "nobody's", torch.zeros(3))
    with pytest.raises(ValueError, match="policy's nobody's: no parameter of the engine lies in it"):
        start(policy)
    assert not torch.distributed.is_initialized()
    monkeypatch.undo()
    with start(policy) as engine:
        assert decode(engine, group=1, max_new_tokens=2).num_tokens > 0

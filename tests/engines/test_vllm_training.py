"""Training on rollouts of vLLM: after every update its log-probabilities are the trainer's. Needs vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny_policy import checksum, moved, task, tiny
from vllm_rollouts import BATCH, LIMIT, NEEDS_VLLM, start

from rollplex.engines.vllm_engine import VllmEngine
from rollplex.mismatch import Mismatch
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy
from rollplex.run import Run
from rollplex.schedules import Rollplex, Serial, Streamed

pytestmark = NEEDS_VLLM

UPDATES = 20


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny(torch.float32)


@pytest.fixture(scope="module")
def engine(policy: Policy) -> Iterator[VllmEngine]:
    with start(policy) as engine:
        yield engine


def phases(policy: Policy, engine: VllmEngine) -> list[Phase]:
    return [
        Prefix(policy),
        Decode(engine, group=3, max_new_tokens=6),
        Reward([checksum]),
        Suffix(policy),
        Update(policy, lr=1e-3),
    ]


def test_after_every_update_the_engine_scores_as_the_trainer(policy: Policy, engine: VllmEngine) -> None:
    """The same prompts each time, so that a cache that outlived an update would be met; no byte is moved in between."""
    prefix, decode, reward, suffix, update = phases(policy, engine)
    batch, before, worst = BATCH, policy.snapshot(), []
    addresses = [parameter.data_ptr() for parameter in engine.parameters().values()]
    for _ in range(UPDATES):
        rollout = decode(batch)
        stats = suffix(batch, prefix(batch), rollout, reward(batch, rollout))
        for group, ours in zip(rollout.groups, stats.logprobs, strict=True):
            inside = torch.arange(ours.shape[1]) < group.lengths[:, None]
            worst.append(float((group.logprobs - ours)[inside].abs().max()))
        update(stats)
    assert max(worst) <= LIMIT, f"worst {max(worst):.2g}"
    assert moved(policy, before) > 1e-3, "the control: the weights did change"
    assert policy.version == UPDATES
    assert engine.share == 1
    assert [parameter.data_ptr() for parameter in engine.parameters().values()] == addresses


@pytest.mark.parametrize("schedule", [Rollplex(), Streamed()], ids=lambda s: type(s).__name__)
def test_schedules_agree_over_vllm(policy: Policy, engine: VllmEngine, schedule: Serial) -> None:
    """Decode is interleaved with the prefix step by step of vLLM; the losses are those of the serial step."""
    before, version = policy.snapshot(), policy.version
    losses = []
    for each in (Serial(), schedule):
        policy.restore(before, version)
        run = Run(task(), phases(policy, engine), schedule=each, prompts=2, seed=3)
        losses.append([step.suffix.loss for step in run.steps(2) if step.suffix is not None])
        ticks = run.trace.ticks
        assert sum(tick.phase == "decode" for tick in ticks) > 6
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize(("forgets", "light"), [(True, "green"), (False, "red")])
def test_the_monitor_tells_stale_caches(
    policy: Policy, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch, forgets: bool, light: str
) -> None:
    """The same pictures by the same name after an update: right where caches were emptied, red where they were not."""
    prefix, decode, reward, suffix, _ = phases(policy, engine)
    update = Update(policy, lr=5e-2)
    if not forgets:
        monkeypatch.setattr(engine, "_forget", lambda _: None)
    for _ in range(2):
        engine._num_prompts = 0
        rollout = decode(BATCH)
        stats = suffix(BATCH, prefix(BATCH), rollout, reward(BATCH, rollout))
        update(stats)
    assert Mismatch(mean=stats.mismatch_mean, max=stats.mismatch_max).light == light

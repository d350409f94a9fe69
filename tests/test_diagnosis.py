"""With the weights at rest, stale caches and stale weights look different. Each fault is made, and then told."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import pytest
import tiny_policy
import torch

from rollplex.boundary import PrefixState
from rollplex.diagnosis import diagnose, probe
from rollplex.engines.engine import Request
from rollplex.engines.torch_engine import TorchEngine
from rollplex.feed import Ready
from rollplex.mismatch import Mismatch
from rollplex.phases.prefix import Prefix
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.resource import Resource
from rollplex.step import Rollout, RolloutGroup

Ticks = Generator[str | Ready[RolloutGroup], None, Rollout]


@dataclass
class Caching:
    """An engine that keeps the prefix of every batch it served; with ``reset`` it forgets them after an update."""

    policy: Policy
    reset: bool
    kept: dict[int, PrefixState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inner = TorchEngine(self.policy)

    @property
    def weights(self) -> Resource:
        return self.inner.weights

    @property
    def version(self) -> int:
        return self.inner.version

    @property
    def banned(self) -> tuple[int, ...]:
        return self.inner.banned

    def held(self) -> dict[str, int]:
        return {}

    def rollout(self, request: Request, handoff: PrefixState | None = None) -> Ticks:
        kept = self.kept.get(id(request.prompts))
        if kept is None or (self.reset and kept.version != self.version):
            kept = self.kept[id(request.prompts)] = Prefix(self.policy)(request.prompts)
        return self.inner.rollout(request, replace(kept, version=self.version))


@dataclass
class Copying(Caching):
    """An engine that reads a copy of the weights from before, under the current version's name."""

    def __post_init__(self) -> None:
        self.copy = tiny_policy.tiny()
        self.inner = TorchEngine(self.copy)

    def rollout(self, request: Request, handoff: PrefixState | None = None) -> Ticks:
        self.copy.version = self.policy.version
        return self.inner.rollout(request)

    @property
    def version(self) -> int:
        return self.policy.version


def update(policy: Policy) -> None:
    tiny_policy.shift(policy, 0.3)
    policy.version += 1


@pytest.fixture
def policy() -> Policy:
    return tiny_policy.tiny()


def batches() -> tuple[PromptBatch, PromptBatch]:
    return tiny_policy.prompts("one image"), tiny_policy.prompts("one image", seed=1)


def test_an_engine_on_the_policys_storage_agrees(policy: Policy) -> None:
    served, unseen = batches()
    engine = policy.engine()
    probe(policy, engine, served)
    update(policy)
    found = diagnose(policy, engine, served=served, unseen=unseen)
    assert found.verdict == "agree"
    assert max(found.served.max, found.unseen.max) < 1e-9


@pytest.mark.parametrize(("reset", "verdict"), [(False, "stale caches"), (True, "agree")])
def test_caches_from_before_the_update_are_told_by_unseen_prompts(policy: Policy, reset: bool, verdict: str) -> None:
    served, unseen = batches()
    engine = Caching(policy, reset)
    before = probe(policy, engine, served)
    update(policy)
    assert diagnose(policy, engine, served=served, unseen=unseen, before=before).verdict == verdict


def test_weights_from_before_the_update_differ_on_every_prompt(policy: Policy) -> None:
    served, unseen = batches()
    engine = Copying(policy, reset=False)
    before = probe(policy, engine, served)
    assert before.light == "green", "before the update the copy is exact"
    update(policy)
    found = diagnose(policy, engine, served=served, unseen=unseen, before=before)
    assert found.verdict == "stale weights"
    assert "rx.sharing" in str(found)


def test_a_difference_before_any_update_is_no_staleness() -> None:
    fine, fault = Mismatch(mean=0.0, max=0.0), Mismatch(mean=0.1, max=0.5)
    policy = tiny_policy.tiny()
    served, unseen = batches()
    assert diagnose(policy, policy.engine(), served=served, unseen=unseen, before=fault).verdict == "other arithmetic"
    assert diagnose(policy, policy.engine(), served=served, unseen=unseen, before=fine).verdict == "agree"


def test_probing_changes_no_weight_and_no_gradient(policy: Policy) -> None:
    before = policy.snapshot()
    probe(policy, policy.engine(), batches()[0])
    assert all(torch.equal(weight, before[name]) for name, weight in policy.snapshot().items())
    assert not any(bool(gradient.any()) for gradient in policy.gradients.tensors)

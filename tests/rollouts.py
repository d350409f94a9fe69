"""Short rollouts of the built-in engine, and when two of them are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tiny_policy import prompts

from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.step import Rollout, RolloutGroup

BATCH = prompts("mixed", seed=1)


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

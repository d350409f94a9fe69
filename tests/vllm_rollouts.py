"""Short rollouts of vLLM, and how far they are from a full forward. Importing this needs no vLLM."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from tiny_policy import prompts

from rollplex.engines.vllm_engine import VllmEngine
from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.step import Rollout
from rollplex.verify import plain

NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here: `make test-vllm` runs these"),
]

BATCH = prompts("mixed", seed=1)
LIMIT = 1e-5


def start(policy: Policy, **options: Any) -> VllmEngine:
    """A small engine; one may be open at a time."""
    return VllmEngine(policy, **{"max_length": 1024, "max_rows": 64, "kv_bytes": 2**27, **options})


def decode(engine: VllmEngine, batch: PromptBatch = BATCH, **options: Any) -> Rollout:
    return Decode(engine, **{"group": 4, "max_new_tokens": 12, **options})(batch)


@torch.no_grad()
def gap(policy: Policy, batch: PromptBatch, rollout: Rollout) -> float:
    """Largest difference of a rollout's log-probabilities from transformers' own full forward."""
    worst = 0.0
    for prompt, group in zip(batch, rollout.groups, strict=True):
        for tokens, logprobs, n in zip(group.tokens, group.logprobs, group.lengths.tolist(), strict=True):
            full = plain.logprobs(policy.model.module, prompt, tokens[:n], group.sampling)
            worst = max(worst, float((full - logprobs[:n]).abs().max()))
    return worst

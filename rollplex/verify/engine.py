"""The engine's log-probabilities against a full forward of transformers' module, in float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.step import Rollout
from rollplex.verify import cases, plain
from rollplex.verify.check import Check, Control

LIMIT = 1e-5
LENGTHS = ((1, 2, 3, 5, 8, 13, 21, 34), (55, 89, 100, 128, 144, 160, 180, 200), (1, 200, 4, 64, 31, 7, 99, 16))
"""Of the responses to three prompts: finished ones leave a batch in which others go on for long."""


def checks() -> Iterator[Check | Control]:
    """Two temperatures, lengths 1 to 200 in one batch; the wrong temperature is the control."""
    policy, twin = Policy.tiny(), Policy.tiny()
    for temperature in (0.6, 1.0):
        batch = cases.prompts(policy, "mixed")
        decode = Decode(
            policy.engine(), group=8, max_new_tokens=200, temperature=temperature, lengths=torch.tensor(LENGTHS)
        )
        rollout = decode(batch)
        yield Check(
            "engine: log-prob difference", f"temperature {temperature}, lengths 1-200", gap(twin, batch, rollout), LIMIT
        )
    raw = rollout.sampling.__class__(temperature=0.6, banned=rollout.sampling.banned)
    yield Control("log-probs of another temperature", gap(twin, batch, rollout, raw) > LIMIT)


@torch.no_grad()
def gap(twin: Policy, batch: cases.PromptBatch, rollout: Rollout, sampling: plain.Sampling | None = None) -> float:
    """Largest difference over all sampled tokens."""
    worst = 0.0
    for prompt, group in zip(batch, rollout.groups, strict=True):
        for tokens, logprobs, length in zip(group.tokens, group.logprobs, group.lengths.tolist(), strict=True):
            full = plain.logprobs(twin.model.module, prompt, tokens[:length], sampling or group.sampling)
            worst = max(worst, float((full - logprobs[:length]).abs().max()))
    return worst

"""The engine's log-probabilities against a full forward of transformers' module, in float32 and in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.step import Rollout
from rollplex.verify import cases, plain
from rollplex.verify.check import Check, Control

LIMIT, WIDE_LIMIT = 1e-5, 1e-10
"""Largest difference in float32 and in float64, in which nothing but rounding is left between the two."""
LENGTHS = ((1, 2, 3, 5, 8, 13, 21, 34), (55, 89, 100, 128, 144, 160, 180, 200), (1, 200, 4, 64, 31, 7, 99, 16))
"""Of the responses to three prompts: finished ones leave a batch in which others go on for long."""


def checks() -> Iterator[Check | Control]:
    """Two temperatures, lengths 1 to 200 in one batch; the wrong temperature is the control."""
    policy, twin = Policy.tiny(), Policy.tiny()
    batch = cases.prompts(policy, "mixed")
    for temperature in (0.6, 1.0):
        rollout = decode(policy, batch, temperature)
        case = f"temperature {temperature}, lengths 1-200"
        yield Check("engine: log-prob difference, float32", case, gap(twin, batch, rollout), LIMIT)
    cooler = replace(rollout.sampling, temperature=0.6)
    yield Control("log-probs of another temperature", gap(twin, batch, rollout, cooler) > LIMIT)
    policy, twin = Policy.tiny(dtype=torch.float64), Policy.tiny(dtype=torch.float64)
    plain.widen(twin.model.module)
    batch = cases.prompts(policy, "mixed")
    wide = gap(twin, batch, decode(policy, batch, 1.0))
    yield Check("engine: log-prob difference, float64", "temperature 1.0, lengths 1-200", wide, WIDE_LIMIT)


def decode(policy: Policy, batch: cases.PromptBatch, temperature: float) -> Rollout:
    """Eight responses to each of three prompts."""
    lengths = torch.tensor(LENGTHS)
    return Decode(policy.engine(), group=8, max_new_tokens=200, temperature=temperature, lengths=lengths)(batch)


@torch.no_grad()
def gap(twin: Policy, batch: cases.PromptBatch, rollout: Rollout, sampling: plain.Sampling | None = None) -> float:
    """Largest difference over all sampled tokens."""
    worst = 0.0
    for prompt, group in zip(batch, rollout.groups, strict=True):
        for tokens, logprobs, length in zip(group.tokens, group.logprobs, group.lengths.tolist(), strict=True):
            full = plain.logprobs(twin.model.module, prompt, tokens[:length], sampling or group.sampling)
            worst = max(worst, float((full - logprobs[:length]).abs().max()))
    return worst

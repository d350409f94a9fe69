"""The exact split: loss and every gradient of prefix and suffix, against the plain computation, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import torch

from rollplex.boundary import PrefixState
from rollplex.losses import GRPO
from rollplex.memory.pool import HostPool
from rollplex.model.prefix import TapePolicy
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.policy import Policy, Reference
from rollplex.verify import cases, plain
from rollplex.verify.check import Check, Control

LIMIT = 1e-9
FLOAT32_LIMIT = 1e-4
"""Where the plain module rounds to float32 in every norm and in its tower: some ten roundings deep, amplified by the model."""
BETA = 0.04
GROUPS = (1, 2, 8)
POOL_BYTES = 2**28
"""For offloaded tapes; pages that nothing touches cost nothing."""


@dataclass(eq=False)
class Bench:
    """A float64 policy, a reference that differs from it, and untouched transformers twins of both."""

    policy: Policy
    """The lean forward's weights."""
    reference: Reference
    """Likewise, moved a little so that the KL term is not zero."""
    policy_twin: Policy
    """A second load of the same checkpoint: only its transformers module is used."""
    reference_twin: Policy
    """Likewise for the reference."""

    @classmethod
    def make(cls, *, as_it_is: bool = False) -> Bench:
        """Load the shipped model; ``as_it_is`` leaves transformers' casts to float32 in the twins."""
        policy, policy_twin, reference_twin = (Policy.tiny(dtype=torch.float64) for _ in range(3))
        shift(reference_twin)
        reference = Reference(reference_twin)
        for twin in () if as_it_is else (policy_twin, reference_twin):
            plain.widen(twin.model.module)
        return cls(policy, reference, policy_twin, reference_twin)


@torch.no_grad()
def shift(policy: Policy, *, seed: int = 7, size: float = 0.01) -> None:
    """Move a policy's weights a little, at random."""
    random = torch.Generator().manual_seed(seed)
    for leaf in policy.model.leaves.values():
        leaf.add_(torch.randn(leaf.shape, generator=random, dtype=leaf.dtype), alpha=size)


def checks(bench: Bench) -> Iterator[Check | Control]:
    """Every kind of prompt, G and tape; then the two sabotaged splits, which the same comparison must catch."""
    for case in cases.CASES:
        for group in GROUPS:
            batch = cases.prompts(bench.policy, case)
            expected = plain_result(bench, batch, group)
            for tape in get_args(TapePolicy):
                loss, gradients = error(expected, split_result(bench, batch, group, tape))
                name = f"{case}, G={group}, tape={tape}"
                yield Check("split: loss", name, loss, LIMIT)
                yield Check("split: worst gradient", name, gradients, LIMIT)
    untouched = Bench.make(as_it_is=True)
    batch = cases.prompts(untouched.policy, "mixed")
    gaps = error(plain_result(untouched, batch, 2), split_result(untouched, batch, 2, "keep"))
    yield Check("split: gradient, transformers' casts to float32 left in", "mixed, G=2", max(gaps), FLOAT32_LIMIT)
    batch = cases.prompts(bench.policy, "mixed")
    expected = plain_result(bench, batch, 2)
    wrong = split_result(bench, cases.counted_from_length(batch), 2, "keep")
    yield Control("positions counted from the prompt length", max(error(expected, wrong)) > LIMIT)
    wrong = split_result(bench, batch, 2, "keep", detached=True)
    yield Control("detached boundary", max(error(expected, wrong)) > LIMIT)


Result = tuple[float, dict[str, torch.Tensor]]
"""A loss and the gradient of each of transformers' parameters."""


def plain_result(bench: Bench, batch: cases.PromptBatch, group: int) -> Result:
    """Loss and gradients of the full-sequence forward."""
    module = bench.policy_twin.model.module
    bench.policy_twin.zero_gradients()
    rollout, rewards = cases.responses(bench.policy, batch, group)
    advantages = [_advantages(reward.values) for reward in rewards.groups]
    loss = plain.loss(module, bench.reference_twin.model.module, batch, rollout.groups, advantages, BETA)
    return loss, {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def _advantages(values: torch.Tensor) -> torch.Tensor:
    """GRPO's, written down once more: (reward - mean) / (standard deviation + 1e-4)."""
    if len(values) == 1:
        return torch.zeros_like(values)
    return (values - values.mean()) / (values.std() + 1e-4)


def split_result(
    bench: Bench, batch: cases.PromptBatch, group: int, tape: TapePolicy, *, detached: bool = False
) -> Result:
    """Loss and gradients of prefix and suffix; ``detached`` cuts the way back into the prefix (a control)."""
    rollout, rewards = cases.responses(bench.policy, batch, group)
    pool = HostPool(POOL_BYTES) if tape == "offload" else None
    prefix: PrefixState = Prefix(bench.policy, tape=tape, pool=pool)(batch)
    reference: PrefixState = Prefix(bench.reference)(batch)
    if detached:
        prefix = replace(prefix, boundaries=tuple(replace(b, tape=None) for b in prefix.boundaries))
    suffix = Suffix(bench.policy, bench.reference, loss=GRPO(beta=BETA), microbatch=3)
    stats = suffix(batch, prefix, rollout, rewards, reference)
    return stats.loss, {name: g.clone() for name, g in bench.policy.model.named_gradients()}


def error(expected: Result, found: Result) -> tuple[float, float]:
    """Relative error of the loss, and the worst relative error of any parameter's gradient.

    A gradient's error is relative to its own largest element; where the plain one is zero, it must be zero.
    """
    loss, gradients = expected
    names = set(gradients) | set(found[1])
    worst = 0.0
    for name in names:
        one, two = gradients.get(name), found[1].get(name)
        if one is None or two is None:
            one, two = (torch.zeros(()) if one is None else one), (torch.zeros(()) if two is None else two)
        scale = float(one.abs().max())
        gap = float((one - two).abs().max())
        worst = max(worst, gap / scale if scale else (float("inf") if gap else 0.0))
    return abs(found[0] - loss) / max(abs(loss), 1e-30), worst

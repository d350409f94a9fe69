"""A model of the shipped shape in small steps: its prompts, made-up responses, phases, and gradients that are not zero.

Its weights are random, whatever the shipped ones are: every response is about as likely as another.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from rollplex.losses import GRPO
from rollplex.model.model import Model
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference
from rollplex.prompts import PromptBatch
from rollplex.step import Rewards, Rollout, SuffixStats
from rollplex.task import RewardFunction, Row
from rollplex.tasks import Rows
from rollplex.verify import cases, plain


@cache
@torch.no_grad()
def _loaded(dtype: torch.dtype) -> Policy:
    policy, random = Policy.tiny(dtype=dtype), torch.Generator().manual_seed(0)
    for name, leaf in policy.model.leaves.items():
        drawn = torch.randn(leaf.shape, generator=random)
        norm = leaf.dim() == 1 and name.endswith("weight")
        leaf.copy_(1 + 0.1 * drawn if norm else drawn / leaf.shape[-1] ** 0.5)
    return policy


def tiny(dtype: torch.dtype = torch.float64) -> Policy:
    """A policy of the test's own; in float64 transformers' module takes its norms in float64 too, so that both agree."""
    loaded = _loaded(dtype)
    module = deepcopy(loaded.model.module)
    for parameter in module.parameters():
        parameter.grad = None
        parameter.requires_grad_(False)
    if dtype == torch.float64:
        plain.widen(module)
    return Policy(Model.of(module), loaded.ingest)


@cache
def prompts(case: str = "mixed", step: int = 0, seed: int = 0) -> PromptBatch:
    """Two or three prompts; the same objects each time, since prompts are never changed."""
    return replace(cases.prompts(_loaded(torch.float64), case, seed=seed), step=step)


def take(batch: PromptBatch, *indices: int) -> PromptBatch:
    """Some prompts of a batch, in the order given."""
    return replace(batch, prompts=tuple(batch[i] for i in indices))


def checksum(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Differs between responses, and means nothing."""
    return [float(sum(ids) % 97) for ids in completion_ids]


def task(num: int = 12, rewards: Sequence[RewardFunction] = (checksum,)) -> Rows:
    """Rows of text and pictures whose rewards always differ."""
    rows: list[Row] = [row for seed in range(num // 2 + 1) for row in (p.row for p in prompts("one image", seed=seed))]
    return Rows(rows=rows[:num], rewards=list(rewards), heldout=0.5)


def phases(
    policy: Policy,
    *,
    loss: GRPO | None = None,
    rewards: Sequence[RewardFunction] = (checksum,),
    lr: float = 1e-3,
    group: int = 3,
    max_new_tokens: int = 5,
    **engine: Any,
) -> list[Phase]:
    """All of a step, with a reference where the loss needs one."""
    loss = GRPO() if loss is None else loss
    reference = Reference(policy) if loss.needs_reference else None
    return [
        Prefix(policy),
        *([] if reference is None else [Prefix(reference)]),
        Decode(policy.engine(**engine), group=group, max_new_tokens=max_new_tokens),
        Reward(list(rewards)),
        Suffix(policy, reference, loss=loss),
        Update(policy, lr=lr),
    ]


def responses(policy: Policy, batch: PromptBatch, group: int = 3, seed: int = 0) -> tuple[Rollout, Rewards]:
    """Made-up responses of lengths 1 to 9 with rewards that differ."""
    return cases.responses(policy, batch, group, seed=seed)


def train(
    policy: Policy,
    batch: PromptBatch,
    rollout: Rollout,
    rewards: Rewards,
    *,
    loss: GRPO | None = None,
    prefix: dict[str, Any] | None = None,
    **suffix: Any,
) -> tuple[SuffixStats, dict[str, torch.Tensor]]:
    """Prefix and suffix without a reference: the figures, and a copy of every gradient by transformers' name."""
    state = Prefix(policy, **(prefix or {}))(batch)
    stats = Suffix(policy, loss=loss, **suffix)(batch, state, rollout, rewards)
    return stats, gradients(policy)


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: gradient.clone() for name, gradient in policy.model.named_gradients()}


def gap(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """Largest difference of any two tensors, over the largest value of all."""
    assert one.keys() == two.keys()
    scale = max(float(t.abs().max()) for t in one.values())
    assert scale > 0, "comparing zeros would show nothing"
    return max(float((t - two[name]).abs().max()) for name, t in one.items()) / scale


def moved(policy: Policy, before: dict[str, torch.Tensor]) -> float:
    """Largest change of any weight."""
    return max(float((w - before[name]).abs().max()) for name, w in policy.snapshot().items())


@torch.no_grad()
def shift(policy: Policy, size: float = 0.01) -> Policy:
    """Move the weights a little, at random."""
    random = torch.Generator().manual_seed(7)
    for leaf in policy.model.leaves.values():
        leaf.add_(torch.randn(leaf.shape, generator=random).to(leaf.dtype), alpha=size)
    return policy

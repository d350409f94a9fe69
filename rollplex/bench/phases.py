"""The phases of a workload's step."""

from __future__ import annotations

import torch

from rollplex.bench.workloads import Workload
from rollplex.losses import GRPO
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference

KL = GRPO(beta=0.04)
"""A loss with a reference."""


def phases(
    workload: Workload, policy: Policy, *, loss: GRPO = KL, lengths: torch.Tensor | None = None, lr: float = 1e-4
) -> list[Phase]:
    """Fresh phases on a policy, with every response as long as the workload allows, or of the given lengths."""
    reference = Reference(policy) if loss.needs_reference else None
    return [
        Prefix(policy),
        *([] if reference is None else [Prefix(reference)]),
        Decode(
            policy.engine(),
            group=workload.group,
            max_new_tokens=workload.max_new_tokens,
            lengths=workload.full_lengths() if lengths is None else lengths,
        ),
        Reward(workload.rewards, weights=workload.reward_weights),
        Suffix(policy, reference, loss=loss),
        Update(policy, lr=lr),
    ]

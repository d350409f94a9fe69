"""The phases of a workload's step, with every response as long as the workload allows."""

from __future__ import annotations

from rollplex.bench.workloads import Workload
from rollplex.losses import GRPO
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference


def phases(workload: Workload, policy: Policy, *, beta: float = 0.04, lr: float = 1e-4) -> list[Phase]:
    """Fresh phases on a policy; with ``beta`` 0 there is no reference."""
    reference = Reference(policy) if beta else None
    return [
        Prefix(policy),
        *([] if reference is None else [Prefix(reference)]),
        Decode(
            policy.engine(),
            group=workload.group,
            max_new_tokens=workload.max_new_tokens,
            lengths=workload.full_lengths(),
        ),
        Reward(workload.rewards, weights=workload.reward_weights),
        Suffix(policy, reference, loss=GRPO(beta=beta)),
        Update(policy, lr=lr),
    ]

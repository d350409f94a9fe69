"""Whether both sides do the same work: loss and gradient of the first step, for the same responses.

Run as ``python -m rollplex.bench.agreement WORKLOAD 1 FILE``. Responses are drawn by our engine, of lengths that differ
within each group, since a loss over equal ones is zero by symmetry; TRL gets the token ids and does everything else itself:
it tokenises the rows, reads the pictures, scores, and computes loss and gradient over full sequences.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from rollplex.bench.ours import LOSS
from rollplex.bench.peer_trl import FirstStep, first_step
from rollplex.bench.sides import Answer, serve
from rollplex.bench.workloads import Workload
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.policy import Policy
from rollplex.step import Rollout


def compare(workload: Workload, steps: int = 1) -> Answer:
    """Relative differences of the loss, and of the gradient as one vector; the largest of any parameter too."""
    assert steps == 1, "only the first step starts from the same weights"
    policy = Policy.tiny()
    prompts = policy.prompts(workload.task.rows(workload.prompts, step=0))
    decode = Decode(
        policy.engine(),
        group=workload.group,
        max_new_tokens=workload.max_new_tokens,
        lengths=uneven_lengths(workload),
    )
    rollout = unbanned(decode(prompts))
    rewards = Reward(workload.rewards, weights=workload.reward_weights)(prompts, rollout)
    stats = Suffix(policy, loss=LOSS)(prompts, Prefix(policy)(prompts), rollout, rewards)
    theirs = first_step(workload, token_ids(rollout))
    ours = FirstStep(loss=stats.loss, gradients=dict(policy.model.named_gradients()))
    return {
        "loss": ours.loss,
        "peer_loss": theirs.loss,
        "first_step_loss_difference": abs(ours.loss - theirs.loss) / abs(theirs.loss),
        **gradient_differences(ours.gradients, theirs.gradients),
    }


def uneven_lengths(workload: Workload) -> torch.Tensor:
    """``[prompts, group]`` from 1 to the limit, all different for as long as possible."""
    counts = torch.arange(workload.samples).view(workload.prompts, workload.group)
    return counts * 7 % workload.max_new_tokens + 1


def unbanned(rollout: Rollout) -> Rollout:
    """The same responses, scored as TRL scores them: over the whole vocabulary, placeholders included."""
    sampling = replace(rollout.sampling, banned=())
    return replace(
        rollout, sampling=sampling, groups=tuple(replace(group, sampling=sampling) for group in rollout.groups)
    )


def token_ids(rollout: Rollout) -> list[list[int]]:
    """Responses in order, each cut to its length."""
    return [
        tokens[:length].tolist()
        for group in rollout.groups
        for tokens, length in zip(group.tokens, group.lengths.tolist(), strict=True)
    ]


def gradient_differences(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, float]:
    """Distance of two gradients over the length of the second: as one vector, and of the worst parameter."""
    missing = set(ours) ^ set(theirs)
    if missing:
        raise RuntimeError(f"comparing gradients: only one side has one for {sorted(missing)}")
    gaps = {name: float((ours[name] - theirs[name]).norm()) for name in ours}
    sizes = {name: float(theirs[name].norm()) for name in ours}
    whole = torch.tensor(list(gaps.values())).norm() / torch.tensor(list(sizes.values())).norm()
    worst = max(gaps[name] / sizes[name] if sizes[name] else float(gaps[name] > 0) for name in ours)
    return {"first_step_gradient_difference": float(whole), "first_step_worst_parameter_difference": worst}


if __name__ == "__main__":
    serve(compare)

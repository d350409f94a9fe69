"""Our side: a workload's steps through `Run`, timed. Run as ``python -m rollplex.bench.ours WORKLOAD STEPS FILE``."""

from __future__ import annotations

import time

from rollplex.bench.sides import Answer, serve
from rollplex.bench.workloads import Workload
from rollplex.losses import GRPO
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy
from rollplex.run import Run
from rollplex.schedules import OnePrefill

LEARNING_RATE = 1e-4
LOSS = GRPO(loss_type="dapo", beta=0.0)
"""TRL's defaults: its loss type, and no KL term."""


def phases(policy: Policy, workload: Workload) -> list[Phase]:
    """A step whose responses have the workload's lengths."""
    return [
        Prefix(policy),
        Decode(
            policy.engine(),
            group=workload.group,
            max_new_tokens=workload.max_new_tokens,
            lengths=workload.lengths(),
        ),
        Reward(workload.rewards, weights=workload.reward_weights),
        Suffix(policy, loss=LOSS),
        Update(policy, lr=LEARNING_RATE),
    ]


def measure(workload: Workload, steps: int) -> Answer:
    """Seconds of every step, the drawing and ingesting of its rows included."""
    policy = Policy.tiny()
    run = Run(workload.task, phases(policy, workload), OnePrefill(), prompts=workload.prompts)
    seconds, tokens = [], []
    for _ in range(steps):
        start = time.perf_counter()
        step = run.step()
        seconds.append(time.perf_counter() - start)
        assert step.rollout is not None, "a step has a rollout"
        tokens.append(step.rollout.num_tokens)
    return {"step_s": seconds, "tokens": tokens}


if __name__ == "__main__":
    serve(measure)

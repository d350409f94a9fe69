"""Our side: a workload's steps through `Run`, timed. Run as ``python -m rollplex.bench.ours WORKLOAD STEPS FILE``."""

from __future__ import annotations

import time

from rollplex.bench.phases import phases
from rollplex.bench.sides import Answer, serve
from rollplex.bench.workloads import Workload
from rollplex.losses import GRPO
from rollplex.policy import Policy
from rollplex.run import Run
from rollplex.schedules import OnePrefill

LEARNING_RATE = 1e-4
LOSS = GRPO(loss_type="dapo", beta=0.0)
"""TRL's defaults: its loss type, and no KL term."""


def measure(workload: Workload, steps: int) -> Answer:
    """Seconds of every step, the drawing and ingesting of its rows included."""
    policy = Policy.tiny()
    made = phases(workload, policy, loss=LOSS, lengths=workload.lengths(), lr=LEARNING_RATE)
    run = Run(workload.task, made, OnePrefill(), prompts=workload.prompts)
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

"""Schedules against each other: the same weights after the same steps, whatever ran when."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rollplex.execute import ExecutorName
from rollplex.losses import GRPO
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase, Tick
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference
from rollplex.run import Run
from rollplex.schedule import Schedule
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed
from rollplex.tasks import Digits
from rollplex.verify.check import Check, Control

STEPS = 10
PROMPTS, GROUP, NEW_TOKENS = 3, 4, 24


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run ended with."""

    weights: dict[str, torch.Tensor]
    """The policy's weights by name."""
    tokens: tuple[torch.Tensor, ...]
    """Every sampled response of every step."""
    moved: float
    """Largest change of any weight."""

    def distance(self, other: Outcome) -> float:
        """Largest difference of the weights, over the largest weight; inf if other tokens were sampled."""
        if any(not torch.equal(a, b) for a, b in zip(self.tokens, other.tokens, strict=True)):
            return float("inf")
        scale = max(float(w.abs().max()) for w in self.weights.values())
        return max(float((w - other.weights[name]).abs().max()) for name, w in self.weights.items()) / scale


def outcome(
    schedule: Schedule,
    *,
    dtype: torch.dtype = torch.float32,
    executor: ExecutorName = "interleave",
    generator: torch.Generator | None = None,
    steps: int = STEPS,
) -> Outcome:
    """Train the shipped model for some steps; with ``generator``, decode and prefixes draw from it in turn."""
    policy = Policy.tiny(dtype=dtype)
    reference, before = Reference(policy), policy.snapshot()
    task = Digits(seed=0)
    wrap: Callable[[Phase], Phase] = (lambda p: p) if generator is None else (lambda p: Drawing(p, generator))
    phases = [
        wrap(Prefix(policy)),
        wrap(Prefix(reference)),
        Decode(policy.engine(generator=generator), group=GROUP, max_new_tokens=NEW_TOKENS),
        # Lengths, so that there is a gradient even where no answer is right.
        Reward([*task.rewards, tokens_reward], weights=[1.0] * len(task.rewards) + [0.01]),
        Suffix(policy, reference, loss=GRPO(beta=0.04)),
        Update(policy, lr=1e-4),
    ]
    run = Run(task, phases, schedule, prompts=PROMPTS, executor=executor)
    tokens = []
    for step in run.steps(steps):
        assert step.rollout is not None
        tokens += [line[:n] for g in step.rollout.groups for line, n in zip(g.tokens, g.lengths, strict=True)]
    weights = policy.snapshot()
    moved = max(float((weights[name] - old).abs().max()) for name, old in before.items())
    return Outcome(weights, tuple(tokens), moved)


def tokens_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The sum of the token ids modulo 7: differs between responses, and means nothing."""
    return [float(sum(ids) % 7) for ids in completion_ids]


class Drawing(Phase):
    """A phase that also draws from a generator shared with others, as dropout from a global one would."""

    def __init__(self, phase: Phase, generator: torch.Generator) -> None:
        self.phase = phase
        self.generator = generator

    @property
    def name(self) -> str:
        """The phase's."""
        return self.phase.name

    @property
    def writes(self) -> str:
        """The phase's."""
        return self.phase.writes

    def inputs(self) -> dict[str, bool]:
        """The phase's."""
        return self.phase.inputs()

    def run(self, **fields: Any) -> Generator[Tick, None, Any]:
        """The phase's ticks, a number drawn before each."""
        inner = self.phase.run(**fields)
        while True:
            torch.rand(1, generator=self.generator)
            try:
                yield next(inner)
            except StopIteration as stop:
                return stop.value


def checks() -> Iterator[Check | Control]:
    """Bit-identity in float32, agreement in float64, threads, and a shared generator as the control."""
    serial = outcome(Serial())
    yield Check("schedules: weights did not move (1 if so)", "Serial, float32", float(serial.moved == 0), 0.0)
    yield Check(
        "schedules: difference from Serial", "Rollplex, float32, interleave", outcome(Rollplex()).distance(serial), 0.0
    )
    wide = outcome(Serial(), dtype=torch.float64)
    for schedule, executor in AGREEING:
        found = outcome(schedule, dtype=torch.float64, executor=executor)
        case = f"{schedule!r}, float64, {executor}"
        yield Check("schedules: difference from Serial", case, found.distance(wide), 1e-6)
    one, two = (
        outcome(schedule, generator=torch.Generator().manual_seed(0), steps=2) for schedule in (Serial(), Rollplex())
    )
    yield Control("one generator shared by all phases", one.distance(two) > 1e-6)


AGREEING: tuple[tuple[Schedule, ExecutorName], ...] = (
    (OnePrefill(), "interleave"),
    (Streamed(), "interleave"),
    (Streamed(handoff=True), "interleave"),
    (Rollplex(), "threads"),
    (Streamed(), "threads"),
)
"""Schedules and executors that must end where `Serial` does."""

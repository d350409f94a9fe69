"""Update: one optimizer step, which writes the next weights where the engine reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import final

from rollplex.optim import AdamW
from rollplex.phases.phase import Phase, Tick
from rollplex.policy import Policy
from rollplex.resource import Resource
from rollplex.step import SuffixStats, UpdateStats


@final
class Update(Phase):
    """AdamW over the policy's gradients; raises the policy's version by one.

    >>> Update(Policy.tiny(), lr=1e-4).writes
    'update'
    """

    def __init__(
        self,
        policy: Policy,
        *,
        lr: float | Callable[[int], float] = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
    ) -> None:
        self.policy = policy
        self.optimizer = AdamW(
            policy, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_grad_norm=max_grad_norm
        )

    @property
    def name(self) -> str:
        """``update``."""
        return "update"

    @property
    def writes(self) -> str:
        """``update``."""
        return "update"

    @property
    def reads(self) -> tuple[Resource, ...]:
        """The gradients."""
        return (self.policy.gradients,)

    @property
    def mutates(self) -> tuple[Resource, ...]:
        """Weights, gradients (clipping) and moments."""
        return (self.policy.weights, self.policy.gradients, self.optimizer.state)

    def run(self, suffix: SuffixStats) -> Generator[Tick, None, UpdateStats]:
        """Norm first, then the step: a gradient that is not finite changes nothing."""
        self.policy.expect(suffix.version, "gradient")
        norm = self.optimizer.norm()
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"updating at step {suffix.step}: the gradient's norm is {norm}, first in {self._first_bad()!r}. "
                "Nothing was changed. Look at step.suffix, lower the learning rate, or use a wider type."
            )
        yield "gradient norm"
        self.optimizer.step(suffix.step, norm)
        self.policy.version += 1
        yield "adamw"
        return UpdateStats(
            version=self.policy.version,
            step=suffix.step,
            grad_norm=norm,
            learning_rate=self.optimizer.learning_rate(suffix.step),
            clipped=norm > self.optimizer.max_grad_norm,
        )

    def _first_bad(self) -> str:
        for name, gradient in self.policy.model.named_gradients():
            if not bool(gradient.isfinite().all()):
                return name
        return "no single tensor (the squares overflow)"

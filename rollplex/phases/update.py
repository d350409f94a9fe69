"""Update: one optimizer step, which writes the next weights where the engine reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, final

from rollplex.memory.memory import Memory
from rollplex.memory.pool import HostPool
from rollplex.optim import AdamW, Optimizer
from rollplex.optim_streamed import StreamedAdamW
from rollplex.phases.phase import Phase, Tick
from rollplex.policy import Policy
from rollplex.resource import Resource
from rollplex.step import SuffixStats, UpdateStats


@final
class Update(Phase):
    """AdamW over the policy's gradients; raises the policy's version by one.

    With ``chunk_bytes`` the state lives on the host, in ``pool`` or in one of its own, and visits the device in chunks
    of at most so many bytes; the numbers are the same. `rollplex.optim_streamed.CHUNK_BYTES` is a good size.

    >>> Update(Policy.tiny(), lr=1e-4).writes
    'update'
    >>> Update(Policy.tiny(), lr=1e-4, chunk_bytes=2**20).optimizer
    StreamedAdamW(lr 0.0001, 20 chunks, norm limit 1)
    """

    unbroken = True

    def __init__(
        self,
        policy: Policy,
        *,
        lr: float | Callable[[int], float] = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        chunk_bytes: int | None = None,
        pool: HostPool | None = None,
    ) -> None:
        if pool is not None and chunk_bytes is None:
            raise ValueError(
                "making an Update: it was given a pool and no chunk_bytes, so its state would stay on the device. "
                "Give chunk_bytes too, or leave the pool out."
            )
        self.policy = policy
        numbers: dict[str, Any] = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_grad_norm=max_grad_norm
        )
        self.optimizer: Optimizer = (
            AdamW(policy, **numbers)
            if chunk_bytes is None
            else StreamedAdamW(policy, chunk_bytes=chunk_bytes, pool=pool, **numbers)
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

    def move_in(self, memory: Memory | None) -> None:
        """The optimizer's state."""
        super().move_in(memory)
        self.optimizer.move_in(memory)

    def run(self, suffix: SuffixStats) -> Generator[Tick, None, UpdateStats]:
        """Norm first, then the step: a gradient that is not finite changes nothing."""
        self.policy.expect(suffix.version, "gradient")
        self.policy.expect_module_alike()
        norm = self.optimizer.norm()
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"updating at step {suffix.step}: the gradient's norm is {norm}, first in {self._first_bad()!r}. "
                "Nothing was changed. Look at step.suffix, lower the learning rate, or use a wider type."
            )
        yield "gradient norm"
        yield from self.optimizer.prepare()
        try:
            yield from self.optimizer.commit(suffix.step, norm)
        except GeneratorExit:  # between two ticks: the optimizer has gone on to its end, which the value tells
            pass
        finally:  # whatever happened, these are not the weights of the version before
            self.policy.version += 1
        recipe = self.optimizer.recipe
        return UpdateStats(
            version=self.policy.version,
            step=suffix.step,
            grad_norm=norm,
            learning_rate=recipe.learning_rate(suffix.step),
            clipped=norm > recipe.max_grad_norm,
        )

    def _first_bad(self) -> str:
        for name, gradient in self.policy.model.named_gradients():
            if not bool(gradient.isfinite().all()):
                return name
        return "no single tensor (the squares overflow)"

"""An engine with weights of its own, brought up to date by a copy: what sharing one copy saves.

For comparison only: it does what the built-in engine does, from a second copy of every weight.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import Any

import torch

from rollplex.boundary import PrefixState
from rollplex.engines.engine import Request
from rollplex.engines.torch_engine import TorchEngine
from rollplex.feed import Ready
from rollplex.model.model import Model
from rollplex.policy import Policy
from rollplex.resource import Resource
from rollplex.step import Rollout, RolloutGroup

OWNER = "engine.weights"
"""Name of the copy in ledgers."""


class CopiedEngine:
    """The built-in engine over a copy of a policy's weights; ``options`` are those of `TorchEngine`.

    >>> policy = Policy.tiny()
    >>> engine = CopiedEngine(policy)
    >>> engine.weights.overlaps(policy.weights), engine.weights.nbytes == policy.weights.nbytes
    (False, True)
    """

    def __init__(self, policy: Policy, **options: Any) -> None:
        self._policy = policy
        self._served = Policy(Model.of(copy.deepcopy(policy.model.module)), policy.ingest)
        for tensor in (*self._served.model.leaves.values(), *self._served.model.module.parameters()):
            tensor.grad = None
            tensor.requires_grad_(False)
        self._served.version = policy.version
        self._engine = TorchEngine(self._served, **options)

    @property
    def weights(self) -> Resource:
        """The copy."""
        return Resource(OWNER, self._served.weights.tensors)

    @property
    def version(self) -> int:
        """Version of the policy: a rollout begins with copying what is newer."""
        return self._policy.version

    @property
    def banned(self) -> tuple[int, ...]:
        """The visual placeholders."""
        return self._engine.banned

    def held(self) -> dict[str, int]:
        """The response cache."""
        return self._engine.held()

    def rollout(
        self, request: Request, handoff: PrefixState | None = None
    ) -> Generator[str | Ready[RolloutGroup], None, Rollout]:
        """Bring the copy up to date, where the policy lives now, and serve the request from it."""
        self._refresh()
        yield "copy of the weights"
        return (yield from self._engine.rollout(request, handoff))

    @torch.no_grad()
    def _refresh(self) -> None:
        from rollplex.memory.placement import move_weights

        memory = self._policy.memory
        if self._served.memory is not memory:
            move_weights(self._served.model, OWNER, self._served.memory, memory)
            self._served.memory = memory
        if self._served.version != self._policy.version:
            for copied, weight in zip(self._served.weights.tensors, self._policy.weights.tensors, strict=True):
                copied.copy_(weight)
            self._served.version = self._policy.version

    def __repr__(self) -> str:
        return f"CopiedEngine(version {self._served.version}, {self.weights.nbytes:,} bytes of weights)"

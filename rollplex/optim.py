"""The optimizer of the policy's fused weights: torch's AdamW, over float32 masters where the weights are narrower."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from rollplex.policy import Policy
from rollplex.resource import Resource


class AdamW:
    """`torch.optim.AdamW` on a policy's distinct weights, with a global norm limit.

    Fused weights get the same update as their parts would: AdamW works element by element.

    >>> optimizer = AdamW(Policy.tiny(), lr=1e-4)
    >>> optimizer.learning_rate(0)
    0.0001
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
        if not max_grad_norm > 0:
            raise ValueError(
                f"making an optimizer: max_grad_norm is {max_grad_norm}; it must be > 0 (inf for no limit)"
            )
        self._policy = policy
        self._lr = lr
        self.max_grad_norm = max_grad_norm
        weights = policy.weights.tensors
        narrow = policy.model.dtype.itemsize < 4
        self._masters = [w.detach().float() if narrow else w for w in weights]
        self._adam = torch.optim.AdamW(
            self._masters, lr=self.learning_rate(0), betas=betas, eps=eps, weight_decay=weight_decay
        )

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step."""
        return float(self._lr(step)) if callable(self._lr) else self._lr

    @property
    def state(self) -> Resource:
        """Moments, and masters where they are not the weights themselves."""
        moments = [t for s in self._adam.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim()]
        return Resource("optimizer.state", (*moments, *(master for master, _ in self._narrow())))

    @torch.no_grad()
    def norm(self) -> float:
        """Global 2-norm of the policy's gradients."""
        gradients = self._policy.gradients.tensors
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))).to(torch.float64)))

    @torch.no_grad()
    def step(self, index: int, norm: float) -> None:
        """Clip to the norm limit and take one step, writing the weights where every reader has them."""
        gradients = list(self._policy.gradients.tensors)
        if norm > self.max_grad_norm:
            torch._foreach_mul_(gradients, self.max_grad_norm / (norm + 1e-6))
        for group in self._adam.param_groups:
            group["lr"] = self.learning_rate(index)
        for master, weight, gradient in zip(self._masters, self._policy.weights.tensors, gradients, strict=True):
            if master is not weight:
                master.grad = gradient.float()
        self._adam.step()
        for master, weight in self._narrow():
            weight.copy_(master)
            master.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming exactly needs, besides the weights."""
        return {"adam": copy.deepcopy(self._adam.state_dict()), "masters": [m.clone() for m, _ in self._narrow()]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        # Copied: torch keeps the tensors it is given, and would go on to write into the caller's.
        self._adam.load_state_dict(copy.deepcopy(state["adam"]))
        for (master, _), saved in zip(self._narrow(), state["masters"], strict=True):
            master.copy_(saved)

    def _narrow(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Masters that are not the weights themselves, with their weights."""
        return [(m, w) for m, w in zip(self._masters, self._policy.weights.tensors, strict=True) if m is not w]

    def __repr__(self) -> str:
        return f"AdamW(lr {self.learning_rate(0):g}, {len(self._masters)} tensors, norm limit {self.max_grad_norm:g})"

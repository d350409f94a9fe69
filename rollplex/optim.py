"""The optimizer of the policy's fused weights: torch's AdamW, over float32 masters where the weights are narrower.

Weights are what counts: where they were written by somebody else since the last step (`Policy.restore`, a checkpoint
loaded into the module), masters follow them. Moments stay as they are, unless a saved state is restored too.

Here are what every optimizer of a policy offers, the numbers that steer it, and the one whose state stays where the
weights are. The one that streams its state: `rollplex.optim_streamed`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rollplex.interrupts import held_back
from rollplex.memory.memory import Memory
from rollplex.policy import Policy
from rollplex.resource import Resource

OWNER = "policy.optimizer"
"""Name of an optimizer's state in ledgers."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The numbers that steer AdamW.

    >>> Recipe(lr=1e-4).learning_rate(0)
    0.0001
    """

    lr: float | Callable[[int], float] = 1e-4
    """Learning rate, or a function of the step's index."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled from the gradient."""
    max_grad_norm: float = 1.0
    """The global norm that larger gradients are scaled down to."""

    def __post_init__(self) -> None:
        if not self.max_grad_norm > 0:
            raise ValueError(
                f"making an optimizer: max_grad_norm is {self.max_grad_norm}; it must be > 0 (inf for no limit)"
            )

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step."""
        return float(self.lr(step)) if callable(self.lr) else self.lr

    def clip(self, norm: float) -> float | None:
        """What gradients of a norm are multiplied by, or None where they stay as they are."""
        return self.max_grad_norm / (norm + 1e-6) if norm > self.max_grad_norm else None

    def adam(self, weights: list[torch.Tensor]) -> torch.optim.AdamW:
        """torch's optimizer with these numbers."""
        return torch.optim.AdamW(
            weights, lr=self.learning_rate(0), betas=self.betas, eps=self.eps, weight_decay=self.weight_decay
        )


class Optimizer(Protocol):
    """Takes steps with a policy's gradients."""

    @property
    def recipe(self) -> Recipe:
        """The numbers that steer it."""
        ...

    @property
    def state(self) -> Resource:
        """What it holds on the device."""
        ...

    def move_in(self, memory: Memory | None) -> None:
        """Have its state live in a memory from now on, or where torch allocates; the policy has moved already."""
        ...

    def norm(self) -> float:
        """Global 2-norm of the policy's gradients."""
        ...

    def prepare(self) -> Generator[str, None, None]:
        """All of a step that can fail or be abandoned: after it no memory is asked for, and no weight has moved."""
        ...

    def commit(self, index: int, norm: float) -> Generator[str, None, None]:
        """Clip to the norm limit and step, writing the weights where every reader has them; closed early, it ends."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming exactly needs, besides the weights."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, of this optimizer or of the other kind."""
        ...


@torch.no_grad()
def gradient_norm(policy: Policy) -> float:
    """Global 2-norm of the gradients of a policy's weights, frozen ones aside: what a suffix left there clips nothing."""
    pairs = zip(policy.weights.tensors, policy.gradients.tensors, strict=True)
    gradients = [gradient for weight, gradient in pairs if weight.requires_grad]
    if not gradients:
        return 0.0
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)).to(torch.float64)))


@torch.no_grad()
def follow(masters: Iterable[torch.Tensor], weights: Iterable[torch.Tensor]) -> None:
    """Have masters follow weights that somebody else has written since; where nobody has, they keep their finer digits.

    >>> master, weight = torch.tensor([1.001, 2.001]), torch.tensor([1.0, 4.0], dtype=torch.bfloat16)
    >>> follow([master], [weight])
    >>> master
    tensor([1.0010, 4.0000])
    """
    for master, weight in zip(masters, weights, strict=True):
        master.copy_(torch.where(master.to(weight.dtype) == weight, master, weight))


def check_state(state: Mapping[str, Any], weights: Sequence[torch.Tensor], *, masters: bool) -> None:
    """Refuse a saved state of other weights, before anything of it is restored."""
    doing = "restoring an optimizer's state"
    moments: Mapping[int, Mapping[str, torch.Tensor]] = state["adam"]["state"]
    saved: Sequence[torch.Tensor] = state["masters"]
    if bool(saved) is not masters:
        kinds = ("without", "with") if masters else ("with", "without")
        raise ValueError(
            f"{doing}: it was saved {kinds[0]} float32 masters and these weights, {weights[0].dtype}, are trained "
            f"{kinds[1]}. Load the policy in the type that it was saved in."
        )
    shapes = [tuple(weight.shape) for weight in weights]
    rows = {name: [moments[place][name] for place in sorted(moments)] for name in ("exp_avg", "exp_avg_sq")}
    for name, row in {**rows, "masters": saved}.items():
        found = [tuple(tensor.shape) for tensor in row]
        if found and found != shapes:
            raise ValueError(
                f"{doing}: {name!r} has {len(found)} tensors and the policy {len(shapes)} weights, or their shapes "
                "differ. Load the state of the same model."
            )


class AdamW:
    """`torch.optim.AdamW` on a policy's distinct weights, with a global norm limit.

    Fused weights get the same update as their parts would: AdamW works element by element.

    >>> optimizer = AdamW(Policy.tiny(), lr=1e-4)
    >>> optimizer.learning_rate(0)
    0.0001
    """

    def __init__(self, policy: Policy, **recipe: Any) -> None:
        self.recipe = Recipe(**recipe)
        self._policy = policy
        weights = policy.weights.tensors
        narrow = policy.model.dtype.itemsize < 4
        self._masters = [w.detach().float() if narrow else w for w in weights]
        self._adam = self.recipe.adam(self._masters)
        self._memory: Memory | None = None

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step."""
        return self.recipe.learning_rate(step)

    @property
    def state(self) -> Resource:
        """Moments, and masters where they are not the weights themselves."""
        moments = [t for s in self._adam.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim()]
        return Resource("optimizer.state", (*moments, *(master for master, _ in self._narrow())))

    def move_in(self, memory: Memory | None) -> None:
        """All of it on the device, in every phase: this is the optimizer that offloads nothing."""
        if memory is not self._memory:
            old, self._memory = self._memory, memory
            self._settle(old)

    @torch.no_grad()
    def _settle(self, old: Memory | None) -> None:
        """Put the state where it lives; in a memory moments are there before the first step already."""
        if old is not None:
            for tensor in self.state.tensors:
                tensor.data = tensor.detach().clone()
            old.give_up(OWNER)
        if self._memory is None:
            return
        for master in self._masters:
            self._ensure_moments(master)
        self._memory.house(OWNER, self.state.tensors, stays=True)

    def norm(self) -> float:
        """Global 2-norm of the policy's gradients."""
        return gradient_norm(self._policy)

    def prepare(self) -> Generator[str, None, None]:
        """Nothing: all of it is there."""
        yield from ()

    def commit(self, index: int, norm: float) -> Generator[str, None, None]:
        """One tick."""
        self.step(index, norm)
        yield "adamw"

    @torch.no_grad()
    def step(self, index: int, norm: float) -> None:
        """Clip to the norm limit and take one step, writing the weights where every reader has them."""
        with held_back():  # weights are never of two versions
            self._step(index, norm)

    def _step(self, index: int, norm: float) -> None:
        gradients = list(self._policy.gradients.tensors)
        scale = self.recipe.clip(norm)
        if scale is not None:
            torch._foreach_mul_(gradients, scale)
        for group in self._adam.param_groups:
            group["lr"] = self.learning_rate(index)
        if narrow := self._narrow():
            follow(*zip(*narrow, strict=True))
        trained: list[torch.Tensor] = []
        for master, weight, gradient in zip(self._masters, self._policy.weights.tensors, gradients, strict=True):
            if not weight.requires_grad:
                # The streamed optimizer has one count of steps for all weights, and loads this state.
                self._ensure_moments(master)
                self._adam.state[master]["step"] += 1
                continue
            trained.append(master)
            if master is not weight:
                master.grad = gradient.float()
        (group,) = self._adam.param_groups
        group["params"] = trained
        try:
            self._adam.step()
        finally:
            group["params"] = self._masters
        for master, weight in narrow:
            weight.copy_(master)
            master.grad = None

    def _ensure_moments(self, master: torch.Tensor) -> None:
        """Zero moments, where torch has made none yet."""
        if not self._adam.state[master]:
            self._adam.state[master] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(master, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(master, requires_grad=False),
            }

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming exactly needs, besides the weights."""
        return {"adam": copy.deepcopy(self._adam.state_dict()), "masters": [m.clone() for m, _ in self._narrow()]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, of this kind or of the other; the numbers that steer stay this one's."""
        check_state(state, self._policy.weights.tensors, masters=bool(self._narrow()))
        # Copied: torch keeps the tensors it is given, and would go on to write into the caller's.
        self._adam.load_state_dict(copy.deepcopy(state["adam"]))
        recipe = self.recipe
        for group in self._adam.param_groups:  # torch restores the saved ones, and a changed recipe would say nothing
            group.update(betas=recipe.betas, eps=recipe.eps, weight_decay=recipe.weight_decay)
        for (master, _), saved in zip(self._narrow(), state["masters"], strict=True):
            master.copy_(saved)
        if self._memory is not None:
            self._settle(self._memory)

    def _narrow(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Masters that are not the weights themselves, with their weights."""
        return [(m, w) for m, w in zip(self._masters, self._policy.weights.tensors, strict=True) if m is not w]

    def __repr__(self) -> str:
        limit = self.recipe.max_grad_norm
        return f"AdamW(lr {self.learning_rate(0):g}, {len(self._masters)} tensors, norm limit {limit:g})"

"""A training rank of tensor parallelism whose parameters are views of a shared region: gradient, update, publication.

Small, exact, and meant to be read: the text layers divided among ranks, the vision tower whole on each, AdamW on what a
rank holds. It knows neither processes nor prompts' origin; `rollplex.sharing.rehearsal` runs several.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from rollplex.advantages import advantages
from rollplex.losses import GRPO
from rollplex.model.model import Model
from rollplex.model.qwen2_5_vl import VISION
from rollplex.prompts import PromptBatch
from rollplex.shapes import TextShape
from rollplex.sharing.bind import Binding
from rollplex.sharing.exchange import Exchange, Published
from rollplex.sharing.house import point
from rollplex.sharing.layout import Layout
from rollplex.sharing.ranks import Ranks
from rollplex.sharing.tensor_parallel import TensorParallel, TextShard
from rollplex.step import Rewards, Rollout, RolloutGroup

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What one step did on one rank."""

    loss: float
    """The loss whose gradient was taken; the same on every rank."""
    grad_norm: float
    """2-norm of the whole model's gradient before clipping; likewise."""
    published: Published
    """What moved."""
    clock_s: tuple[float, float, float, float]
    """When the gradient began, the optimizer began, publishing began and ended, on the machine's monotonic clock."""


class TensorParallelTrainer:
    """One rank. Every rank of the group calls the same methods with the same arguments.

    ``model`` lends its vision tower and its rotary angles; its vision weights become views of the binding.
    """

    def __init__(
        self,
        binding: Binding,
        model: Model,
        shape: TextShape,
        exchange: Exchange,
        *,
        rank: int,
        tp: int,
        group: dist.ProcessGroup,
        lr: float = 1e-4,
        max_grad_norm: float = 1.0,
    ) -> None:
        text = {name: t.detach() for name, t in binding.trainer.items() if not name.startswith(VISION)}
        vision = {name: leaf for name, leaf in model.leaves.items() if name.startswith(VISION)}
        self.parameters = text | vision
        binding.adopt("trainer", self.parameters, keep_values=False)
        point(model)
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)
        self.binding = binding
        self.max_grad_norm = max_grad_norm
        self._tp = tp
        self._group = group
        self._exchange = exchange
        self._layouts = {layout.tensor: layout for layout in binding.pairing.train}
        self._adam = torch.optim.AdamW(list(self.parameters.values()), lr=lr, weight_decay=0.0)
        self._text, self._shape, self._rank, self._model = text, shape, rank, model

    @property
    def model(self) -> TensorParallel:
        """The forward over this rank's shard: anew for every pass, since its views belong to one graph."""
        model = self._model
        shard = TextShard.of(self._text, self._shape, tp=self._tp, rank=self._rank, eps=model.text.norm.eps)
        return TensorParallel(shards=(shard,), ranks=Ranks(self._group), model=model)

    def step(self, prompts: PromptBatch, rollout: Rollout, rewards: Rewards, loss: GRPO) -> Updated:
        """Gradient, clipping, AdamW in place, and the shards of all devices made whole again."""
        self.binding.check("trainer", self.parameters)
        clock = [time.perf_counter()]
        value = self._backward(prompts, rollout, rewards, loss)
        self._add_replicas()
        norm = self._norm()
        if norm > self.max_grad_norm:
            torch._foreach_mul_([_gradient(p) for p in self.parameters.values()], self.max_grad_norm / (norm + 1e-6))
        clock.append(time.perf_counter())
        self.binding.stamp.open()
        self._adam.step()
        clock.append(time.perf_counter())
        published = self._exchange.publish(rollout.version + 1)
        begun, updated, published_from = clock
        times = (begun, updated, published_from, time.perf_counter())
        return Updated(loss=value, grad_norm=norm, published=published, clock_s=times)

    def _backward(self, prompts: PromptBatch, rollout: Rollout, rewards: Rewards, loss: GRPO) -> float:
        for parameter in self.parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        values = advantages([reward.values for reward in rewards.groups], loss.scale_rewards).values
        groups = rollout.groups
        denominator = loss.denominator(sum(g.size for g in groups), sum(int(g.lengths.sum()) for g in groups))
        model, total = self.model, 0.0
        for prompt, group, weights in zip(prompts, groups, values, strict=True):
            logprobs = nn.utils.rnn.pad_sequence(
                [model.logprobs(prompt, tokens, group.sampling) for tokens in _responses(group)], batch_first=True
            )
            terms = loss.terms(logprobs, group.logprobs[:, : logprobs.shape[1]], None, weights, group.lengths)
            part = loss.partial_sum(terms.total, group.lengths) / denominator
            part.backward()
            total += float(part.detach())
        return total

    @torch.no_grad()
    def _add_replicas(self) -> None:
        """Ranks that hold the same key/value head see other queries each: the head's gradient is the sum."""
        for name, layout in self._layouts.items():
            if layout.axis == "rows" and self._copies(layout) > 1:
                gradient, (block,) = _gradient(self.parameters[name]), layout.blocks
                whole = torch.zeros(layout.pieces[0].rows, gradient.numel() // block.rows, dtype=gradient.dtype)
                mine = whole[block.row : block.row + block.rows]
                mine.copy_(gradient.view_as(mine))
                dist.all_reduce(whole, group=self._group)
                gradient.copy_(mine.view_as(gradient))

    @torch.no_grad()
    def _norm(self) -> float:
        """Over all ranks, what several hold counted once."""
        squares = [
            float(_gradient(p).double().square().sum()) / self._copies(self._layouts[n])
            for n, p in self.parameters.items()
        ]
        total = torch.tensor(sum(squares), dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return float(total) ** 0.5

    def _copies(self, layout: Layout) -> int:
        """On how many ranks each number of a tensor is."""
        if layout.axis is None:
            return self._tp
        whole = sum(-(-piece.rows // layout.padded_to) * layout.padded_to * piece.columns for piece in layout.pieces)
        return self._tp * layout.rows * layout.columns // whole


def _responses(group: RolloutGroup) -> Sequence[torch.Tensor]:
    return [tokens[:length] for tokens, length in zip(group.tokens, group.lengths.tolist(), strict=True)]


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None, "every parameter gets a gradient before its backward pass"
    return parameter.grad

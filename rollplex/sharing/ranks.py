"""The sums and joins of tensor parallelism, with their gradients: over processes, over shards in one process, or both.

It knows collectives. It does not know layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a tensor-parallel group, of which this process has one, several or all.

    >>> Ranks().total([torch.ones(2), torch.ones(2)])
    tensor([2., 2.])
    """

    group: dist.ProcessGroup | None = None
    """The other processes; None if all ranks are in this one."""

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """What every rank has already; its gradient is the sum of theirs."""
        return x if self.group is None else _call(_Spread, x, self.group)

    def total(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of all ranks' parts, on every rank; each part's gradient is the sum's."""
        here = parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)
        return here if self.group is None else _call(_Total, here, self.group)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """All ranks' parts side by side in the last dimension, in the ranks' order; equally many of each process."""
        here = torch.cat(list(parts), dim=-1)
        return here if self.group is None else _call(_Join, here, self.group)


def _call(function: type[torch.autograd.Function], x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    result: torch.Tensor = function.apply(x, group)
    return result


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.width, ctx.rank = x.shape[-1], dist.get_rank(group)
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # What follows is computed alike on every rank, so that each has the whole gradient and keeps its own part.
        return gradients[0][..., ctx.rank * ctx.width : (ctx.rank + 1) * ctx.width], None

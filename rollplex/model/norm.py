"""Root-mean-square norm, with the rounding of transformers' modules in every type but float64.

transformers casts to float32 even there; a float64 model here is float64 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import rms_norm


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Weight and epsilon of one norm."""

    weight: torch.Tensor
    """``[d]``."""
    eps: float
    """Added to the mean square."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., d] -> [..., d]``; the mean square is taken in float32 or wider, as transformers does below float64."""
        if x.dtype == torch.float32 and not torch.is_grad_enabled():
            # The same operations as torch's, whose composite costs more than they do on the few rows of a decode step.
            return (x * x.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()).mul_(self.weight)
        if x.dtype == torch.float32:
            return rms_norm(x, x.shape[-1:], self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)

"""Root-mean-square norm with the rounding of transformers' modules."""

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
        """``[..., d] -> [..., d]``; the mean square is taken in float32 whatever the input, as transformers does."""
        if x.dtype == torch.float32:
            return rms_norm(x, x.shape[-1:], self.weight, self.eps)
        single = x.to(torch.float32)
        single = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * single.to(x.dtype)

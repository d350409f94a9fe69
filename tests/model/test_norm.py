"""The norm, to the last bit as transformers has it."""

import pytest
import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRMSNorm

from rollplex.model.norm import Norm

X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
WEIGHT = torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 0.0), (torch.float32, 1e-5)], ids=str)
@torch.no_grad()
def test_it_rounds_as_transformers_does(dtype: torch.dtype, limit: float) -> None:
    """Narrow inputs are squared in float32, and rounded before the weight is applied."""
    theirs = Qwen2_5_VLRMSNorm(16, eps=1e-5).to(dtype)
    theirs.weight.copy_(WEIGHT)
    found = Norm(theirs.weight, 1e-5)(X.to(dtype))
    assert found.dtype == dtype
    assert float((found - theirs(X.to(dtype))).abs().max()) <= limit


def test_float64_is_float64_throughout() -> None:
    """Unlike transformers', which would round to float32 on the way."""
    expected = WEIGHT * X / (X.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(Norm(WEIGHT, 1e-5)(X), expected, atol=1e-14, rtol=0)

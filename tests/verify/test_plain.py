"""The plain computation in float64: nothing in it rounds to float32, and what a version no longer has is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

from rollplex.policy import Policy
from rollplex.verify import plain

GRID = torch.tensor([(1, 8, 12)])


@torch.no_grad()
def test_a_widened_tower_rounds_nowhere_to_float32() -> None:
    """Its features are the lean forward's to float64's rounding; the tower as it comes (the control) is far from both."""
    policy = Policy.tiny(dtype=torch.float64)
    module: Any = policy.model.module
    patches = torch.randn(96, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(0)).double()
    ours = policy.model.vision(patches, GRID)
    as_it_is = module.model.visual(patches, grid_thw=GRID).pooler_output
    plain.widen(module)
    widened = module.model.visual(patches, grid_thw=GRID).pooler_output
    scale = ours.abs().max()
    assert float((widened - ours).abs().max() / scale) < 1e-12
    assert float((as_it_is - ours).abs().max() / scale) > 1e-9


def test_a_version_that_turns_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its casts would stay, and be taken for an error of what is compared."""

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = modeling_qwen2_5_vl.Qwen2_5_VLVisionAttention(
                Policy.tiny().model.module.config.vision_config
            )

    holder: Any = Holder()
    monkeypatch.setattr(modeling_qwen2_5_vl.Qwen2_5_VLVisionAttention, "forward", lambda self: self)
    with pytest.raises(RuntimeError, match=r"no longer calls apply_rotary_pos_emb_vision"):
        plain.widen(holder)

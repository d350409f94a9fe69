"""Rotary positions: multimodal (temporal, height, width) for the text layers, axial for the vision tower."""

from __future__ import annotations

from dataclasses import dataclass

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the last dimension of ``x`` by the angles whose ``cos`` and ``sin`` broadcast against it."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


@dataclass(frozen=True, slots=True, eq=False)
class TextRotary:
    """M-RoPE of a Qwen-VL text model."""

    inv_freq: torch.Tensor
    """``[D / 2]`` float32."""
    scaling: float
    """Factor on cos and sin (1 for plain rope)."""
    sections: tuple[int, ...]
    """How many of the D / 2 frequencies follow the temporal, height and width position."""

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin ``[..., D]`` of positions ``[3, ...]``; angles are made in float32, as transformers does."""
        freqs = positions[..., None].float() * self.inv_freq
        chosen = torch.cat([part[i % 3] for i, part in enumerate(freqs.split(list(self.sections), dim=-1))], dim=-1)
        doubled = torch.cat((chosen, chosen), dim=-1)
        return (doubled.cos() * self.scaling).to(dtype), (doubled.sin() * self.scaling).to(dtype)

    def text_angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin ``[..., D]`` of text positions ``[...]``, where the three components are equal."""
        freqs = positions[..., None].float() * self.inv_freq
        doubled = torch.cat((freqs, freqs), dim=-1)
        return (doubled.cos() * self.scaling).to(dtype), (doubled.sin() * self.scaling).to(dtype)

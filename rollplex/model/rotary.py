"""Rotary positions: multimodal (temporal, height, width) for the text layers, axial for the vision tower."""

from __future__ import annotations

from dataclasses import dataclass

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the last dimension of ``x`` by the angles of `cos_sin`, which broadcast against it."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((x[..., half:], x[..., :half]), dim=-1) * sin


def cos_sin(half_angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin ``[..., D]`` of angles ``[..., D / 2]``, the sin's first half negated.

    The sign is here, once, and not in every rotation of every layer.
    """
    cos, sin = half_angles.cos(), half_angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


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
        """`cos_sin` of positions ``[3, ...]``; angles are made in float32, as transformers does."""
        freqs = positions[..., None].float() * self.inv_freq
        chosen = torch.cat([part[i % 3] for i, part in enumerate(freqs.split(list(self.sections), dim=-1))], dim=-1)
        return self._scaled(chosen, dtype)

    def text_angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """`cos_sin` of text positions ``[...]``, where the three components are equal."""
        return self._scaled(positions[..., None].float() * self.inv_freq, dtype)

    def _scaled(self, angles: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = cos_sin(angles)
        return (cos * self.scaling).to(dtype), (sin * self.scaling).to(dtype)

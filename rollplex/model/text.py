"""One text layer in the two halves around its attention: everything but the attention itself.

Prefix, suffix and decode differ only in which keys a query sees, so they share these halves.
Shapes: B rows, T positions, d hidden size, Hq query heads, H key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding, silu

from rollplex.model.fuse import Linear
from rollplex.model.norm import Norm
from rollplex.model.rotary import TextRotary, rotate


@dataclass(frozen=True, slots=True, eq=False)
class TextLayer:
    """Weights of one decoder layer, fused."""

    input_norm: Norm
    """Before the attention."""
    qkv: Linear
    """``[(Hq + 2 H) D, d]``, rows q, k, v."""
    out: Linear
    """``[d, Hq D]``."""
    mlp_norm: Norm
    """Before the feed-forward part."""
    gate_up: Linear
    """``[2 f, d]``, rows gate, up."""
    down: Linear
    """``[d, f]``."""
    num_heads: int
    """Hq."""
    num_kv_heads: int
    """H."""
    head_dim: int
    """D."""

    def project(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``x [B, T, d]`` -> q ``[B, T, Hq, D]``, k, v ``[B, T, H, D]``; cos, sin are ``[B, T, 1, D]``."""
        fused = self.qkv(self.input_norm(x)).unflatten(-1, (-1, self.head_dim))
        turned = rotate(fused[..., : self.num_heads + self.num_kv_heads, :], cos, sin)
        q, k = turned.split((self.num_heads, self.num_kv_heads), dim=-2)
        return q, k, fused[..., self.num_heads + self.num_kv_heads :, :]

    def keys_values(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Only k and v of ``project``: what a position leaves behind for later ones."""
        rows = self.num_heads * self.head_dim
        bias = None if self.qkv.bias is None else self.qkv.bias[rows:]
        fused = Linear(self.qkv.weight[rows:], bias)(self.input_norm(x)).unflatten(-1, (-1, self.head_dim))
        return rotate(fused[..., : self.num_kv_heads, :], cos, sin), fused[..., self.num_kv_heads :, :]

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Add the attention's result ``[B, T, Hq D]`` and the feed-forward part to ``x [B, T, d]``."""
        x = x + self.out(attended)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(silu(gate) * up)


@dataclass(frozen=True, slots=True, eq=False)
class TextModel:
    """Weights of the text part."""

    embedding: torch.Tensor
    """``[V, d]``."""
    padding_id: int | None
    """The word whose lookups get no gradient: transformers makes its embedding so."""
    layers: tuple[TextLayer, ...]
    """L decoder layers."""
    norm: Norm
    """After the last layer."""
    head: Linear
    """``[V, d]``; the embedding itself where they are tied."""
    rotary: TextRotary
    """Positions."""

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding ``[..., d]`` for words ``[...]``."""
        return embedding(ids, self.embedding, padding_idx=self.padding_id)

    @property
    def hidden_size(self) -> int:
        """d."""
        return self.embedding.shape[1]

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.embedding.shape[0]

"""The text layers of a Qwen2.5-VL over tensor-parallel shards, whoever laid them out: plain, exact, and slow.

It reads tensors by name: a torch-native trainer's (q_proj, k_proj, v_proj), an engine's (qkv_proj), or a Megatron-style
trainer's (linear_qkv, interleaved by head group). It is for checking and showing that shards compute what the whole
does; it has no cache and runs one sequence at a time.

Shapes: T tokens, R response tokens, d hidden size, Hq local query heads, H local key/value heads, D head size, V words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import embedding, scaled_dot_product_attention, silu

from rollplex.model.attention import per_query_head
from rollplex.model.fuse import Linear
from rollplex.model.model import Model
from rollplex.model.norm import Norm
from rollplex.model.qwen2_5_vl import TEXT
from rollplex.model.rotary import rotate
from rollplex.prompts import Prompt
from rollplex.sampling import Sampling
from rollplex.shapes import TextShape
from rollplex.sharing.ranks import Ranks


class Projection(Protocol):
    """Hidden states ``[T, d]`` -> queries ``[T, Hq, D]``, keys and values ``[T, H, D]``, in a layout of its own."""

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Apart:
    """Three weights, or three row blocks of one."""

    parts: tuple[Linear, Linear, Linear]
    """Of queries, keys and values."""
    head_dim: int
    """D."""

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project."""
        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)) for part in self.parts)
        return q, k, v


@dataclass(frozen=True, slots=True, eq=False)
class Interleaved:
    """One weight whose rows are, head group by head group, its queries, its key and its value."""

    whole: Linear
    """``[groups (Hq / H + 2) D, d]``."""
    num_groups: int
    """H."""
    head_dim: int
    """D."""

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project."""
        heads = self.whole(x).unflatten(-1, (self.num_groups, -1, self.head_dim))
        return heads[..., :-2, :].flatten(-3, -2), heads[..., -2, :], heads[..., -1, :]


@dataclass(frozen=True, slots=True, eq=False)
class LayerShard:
    """One rank's part of a decoder layer."""

    input_norm: Norm
    """Before the attention; the same on every rank."""
    projection: Projection
    """Its heads."""
    out: torch.Tensor
    """``[d, Hq D]``: a part of the sum over ranks."""
    mlp_norm: Norm
    """Before the feed-forward part."""
    gate: torch.Tensor
    """``[f / ranks, d]``."""
    up: torch.Tensor
    """Likewise."""
    down: torch.Tensor
    """``[d, f / ranks]``: a part of the sum."""

    def attend(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """This rank's part of the attention's output ``[T, d]``, of normed hidden states ``[T, d]``."""
        q, k, v = self.projection(x)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        seen = scaled_dot_product_attention(q, *per_query_head(k, v, q.shape[1]), is_causal=True)
        return seen[0].transpose(0, 1).flatten(1) @ self.out.T

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the feed-forward output ``[T, d]``."""
        return (silu(x @ self.gate.T) * (x @ self.up.T)) @ self.down.T


@dataclass(frozen=True, slots=True, eq=False)
class TextShard:
    """One rank's part of the text model."""

    embedding: torch.Tensor
    """``[V / ranks, d]``, padding rows included."""
    first_word: int
    """Id of its first row."""
    layers: tuple[LayerShard, ...]
    """Its part of every layer."""
    norm: Norm
    """After the last layer."""
    head: torch.Tensor
    """``[V / ranks, d]``; the embedding itself where they are tied."""

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], shape: TextShape, *, tp: int, rank: int, eps: float) -> TextShard:
        """Find the weights of one rank of ``tp`` among its tensors, matrices as `rollplex.sharing.bind` makes them."""
        words = tensors[f"{TEXT}.embed_tokens.weight"]
        return cls(
            embedding=words,
            first_word=rank * words.shape[0],
            layers=tuple(_layer(tensors, f"{TEXT}.layers.{i}", shape, tp, eps) for i in range(shape.num_layers)),
            norm=Norm(tensors[f"{TEXT}.norm.weight"].flatten(), eps),
            head=words if shape.tied else tensors["lm_head.weight"],
        )

    def embed(self, ids: torch.Tensor, padding_id: int | None) -> torch.Tensor:
        """This rank's part of the embeddings ``[T, d]``: 0 for words that other ranks have."""
        local, num = ids - self.first_word, self.embedding.shape[0]
        own = (local >= 0) & (local < num)
        padding = None if padding_id is None else padding_id - self.first_word
        mine = padding if padding is not None and 0 <= padding < num else None
        return embedding(torch.where(own, local, 0), self.embedding, padding_idx=mine) * own[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorParallel:
    """A model whose text layers are divided among ranks, while each rank has all of the vision tower."""

    shards: tuple[TextShard, ...]
    """Those of the ranks that this process has."""
    ranks: Ranks
    """The others."""
    model: Model
    """Whose vision tower, rotary angles and token ids it uses; its text weights are not read."""

    def logprobs(self, prompt: Prompt, tokens: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        """Log-probability ``[R]`` of each token of a response, under the distribution that was sampled from."""
        x = self._embed(prompt, torch.cat((prompt.input_ids, tokens)))
        own = prompt.next_position + torch.arange(len(tokens))
        positions = torch.cat((prompt.positions, own.expand(3, -1)), dim=1)
        cos, sin = self.model.text.rotary.angles(positions, x.dtype)
        cos, sin = cos[:, None], sin[:, None]
        for parts in zip(*(shard.layers for shard in self.shards), strict=True):
            normed = self.ranks.spread(parts[0].input_norm(x))
            x = x + self.ranks.total([part.attend(normed, cos, sin) for part in parts])
            normed = self.ranks.spread(parts[0].mlp_norm(x))
            x = x + self.ranks.total([part.feed(normed) for part in parts])
        hidden = self.ranks.spread(self.shards[0].norm(x[prompt.length - 1 : -1]))
        logits = self.ranks.join([hidden @ shard.head.T for shard in self.shards])
        words = logits[:, : self.model.text.vocabulary_size]  # what is beyond is padding
        return sampling.logprobs(words).gather(-1, tokens[:, None])[:, 0]

    def _embed(self, prompt: Prompt, ids: torch.Tensor) -> torch.Tensor:
        x = self.ranks.total([shard.embed(ids, self.model.text.padding_id) for shard in self.shards])
        for token, pixels, grids in zip(
            self.model.placeholder_ids,
            (prompt.pixel_values, prompt.pixel_values_videos),
            (prompt.image_grid_thw, prompt.video_grid_thw),
            strict=True,
        ):
            if len(grids):
                x = x.masked_scatter((ids == token)[:, None], self.model.vision(pixels, grids).to(x.dtype))
        return x


def _layer(tensors: Mapping[str, torch.Tensor], name: str, shape: TextShape, tp: int, eps: float) -> LayerShard:
    gate, up = _halves(tensors, f"{name}.mlp")
    return LayerShard(
        input_norm=Norm(tensors[f"{name}.input_layernorm.weight"].flatten(), eps),
        projection=_projection(tensors, f"{name}.self_attn", shape, tp),
        out=tensors[f"{name}.self_attn.o_proj.weight"],
        mlp_norm=Norm(tensors[f"{name}.post_attention_layernorm.weight"].flatten(), eps),
        gate=gate,
        up=up,
        down=tensors[f"{name}.mlp.down_proj.weight"],
    )


def _projection(tensors: Mapping[str, torch.Tensor], name: str, shape: TextShape, tp: int) -> Projection:
    def linear(part: str) -> Linear:
        return Linear(tensors[f"{name}.{part}.weight"], tensors[f"{name}.{part}.bias"].flatten())

    num_kv = max(shape.num_kv_heads // tp, 1)
    if f"{name}.linear_qkv.weight" in tensors:
        return Interleaved(linear("linear_qkv"), num_kv, shape.head_dim)
    if f"{name}.qkv_proj.weight" not in tensors:
        return Apart((linear("q_proj"), linear("k_proj"), linear("v_proj")), shape.head_dim)
    sizes = [heads * shape.head_dim for heads in (shape.num_heads // tp, num_kv, num_kv)]
    weights = tensors[f"{name}.qkv_proj.weight"].split(sizes)
    biases = tensors[f"{name}.qkv_proj.bias"].flatten().split(sizes)
    q, k, v = (Linear(weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return Apart((q, k, v), shape.head_dim)


def _halves(tensors: Mapping[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up: two tensors, two blocks of one, or its upper and lower half."""
    if f"{name}.gate_proj.weight" in tensors:
        return tensors[f"{name}.gate_proj.weight"], tensors[f"{name}.up_proj.weight"]
    merged = tensors[f"{name}.{'gate_up_proj' if f'{name}.gate_up_proj.weight' in tensors else 'linear_fc1'}.weight"]
    gate, up = merged if merged.dim() == 3 else merged.chunk(2)
    return gate, up

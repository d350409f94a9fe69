"""Batched decoding of groups: one more token for every living response, per call.

A group's prompt keys and values are stored once: all its responses' queries meet them in one matrix product. Only the
response part has a cache line per response. Finished responses leave the batch when enough of them have gathered.

Shapes: B living responses (rows), n prompts of a block, G rows a prompt, H key/value heads, r query heads for each,
D head size, P prompt length, t tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from rollplex.boundary import Boundary
from rollplex.memory.memory import Memory
from rollplex.model.model import Model
from rollplex.model.rectangle import Rectangle
from rollplex.model.text import TextLayer


@dataclass(frozen=True, eq=False)
class Block:
    """The rows whose prompts share one boundary, and how they meet its keys."""

    boundary: Boundary
    """Of all the prompts that began together, those without rows included."""
    keys: tuple[torch.Tensor, ...]
    """``[n, H, P, D]`` a layer: those of the prompts that have rows, once a prompt."""
    values: tuple[torch.Tensor, ...]
    """Likewise."""
    rows: slice
    """Its rows in the batch, ordered by prompt."""
    rectangle: Rectangle
    """Which rows belong to which prompt."""
    bias: torch.Tensor | None
    """``[n, 1, 1, P]`` 0 on real prompt tokens, -inf on padding; None where nothing is padded."""

    @classmethod
    def of(cls, boundary: Boundary, counts: Sequence[int], start: int, dtype: torch.dtype) -> Block:
        """A block with ``counts[i]`` rows of the boundary's prompt i, beginning at row ``start``."""
        rectangle = Rectangle.of(counts, device=boundary.lengths.device)
        rows = slice(start, start + sum(counts))
        # Chosen here, once, and not in every layer of every token.
        keys, values = (tuple(map(rectangle.chosen, part)) for part in (boundary.output.keys, boundary.output.values))
        return cls(boundary, keys, values, rows, rectangle, boundary.bias(rectangle) if boundary.padded else None)

    def attend(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of layer ``index``: q ``[B, H, r, D]`` over the prompt and own k, v ``[B, H, t, D]``."""
        keys, values = self.keys[index], self.values[index]
        prompt = self._grouped(q) @ keys.transpose(-1, -2)
        if self.bias is not None:
            prompt = prompt + self.bias
        # Joined as a prompt's queries, not as rows: of the two parts, only the response's is small enough to move about.
        weights = torch.softmax(torch.cat((prompt, self._grouped(q @ k.transpose(-1, -2))), dim=-1), dim=-1)
        padded = keys.shape[2]
        return self._rows(weights[..., :padded] @ values) + self._rows(weights[..., padded:]) @ v

    def _grouped(self, x: torch.Tensor) -> torch.Tensor:
        """Rows ``[B, H, r, *]`` as a prompt's queries ``[n, H, W r, *]``."""
        return self.rectangle.grouped(x).transpose(1, 2).flatten(2, 3)

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        """The way back from ``[n, H, W r, *]`` to ``[B, H, r, *]``."""
        return self.rectangle.rows(x.unflatten(2, (self.rectangle.width, -1)).transpose(1, 2))


class ResponseCache:
    """Keys and values of response tokens, one line a row, allocated once and kept between rollouts."""

    def __init__(self) -> None:
        self._storage: torch.Tensor | None = None

    def lines(self, model: Model, rows: int, length: int, memory: Memory | None = None) -> torch.Tensor:
        """``[L, 2, rows, H, length, D]``, its contents undefined; grown when a rollout is larger than any before.

        In a memory they are a buffer of its, which it counts and takes away after the rollout.
        """
        layer = model.text.layers[0]
        shape = (len(model.text.layers), 2, rows, layer.num_kv_heads, length, layer.head_dim)
        needed = torch.Size(shape).numel()
        if memory is not None:
            self._storage = None
            return memory.buffer("engine.kv", needed * model.dtype.itemsize).view(model.dtype).view(shape)
        if self._storage is None or self._storage.numel() < needed or self._storage.dtype != model.dtype:
            self._storage = torch.empty(needed, dtype=model.dtype, device=model.device)
        return self._storage[:needed].view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return 0 if self._storage is None else self._storage.nbytes

    def release(self) -> None:
        """Give the memory back until the next rollout."""
        self._storage = None


@dataclass(eq=False)
class Batch:
    """The living responses of a rollout and the layout of their rows."""

    model: Model
    """Whose weights are read."""
    blocks: tuple[Block, ...]
    """Rows by boundary."""
    cache: torch.Tensor
    """``[L, 2, B, H, T, D]``."""
    positions: torch.Tensor
    """``[B]`` position of each row's first response token."""
    ids: torch.Tensor
    """``[B]`` which response each row is."""
    num_tokens: int = 0
    """t, tokens in the cache."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row its last token ``[B]``; hidden states ``[B, d]`` that predict the next."""
        text, t = self.model.text, self.num_tokens
        x = embedding(tokens, text.embedding)
        cos, sin = text.rotary.text_angles(self.positions + t, x.dtype)
        cos, sin = cos[:, None], sin[:, None]
        for index, layer in enumerate(text.layers):
            x = self._layer(index, layer, x, cos, sin, t)
        self.num_tokens = t + 1
        return text.norm(x)

    def _layer(
        self, index: int, layer: TextLayer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, t: int
    ) -> torch.Tensor:
        q, k, v = layer.project(x, cos, sin)
        rows = len(x)
        lines = self.cache[index, :, :rows]
        lines[0, :, :, t], lines[1, :, :, t] = k, v
        q = (q * layer.head_dim**-0.5).unflatten(1, (layer.num_kv_heads, -1))
        seen = lines[:, :, :, : t + 1]
        parts = [b.attend(index, q[b.rows], seen[0, b.rows], seen[1, b.rows]) for b in self.blocks]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return layer.finish(x, attended.flatten(1))

    def keep(self, alive: torch.Tensor) -> None:
        """Drop the rows where ``alive [B]`` is False: the others move up."""
        rows = alive.nonzero()[:, 0]
        blocks, start = [], 0
        for block in self.blocks:
            living = block.rectangle.owners()[alive[block.rows].cpu()]
            counts = torch.bincount(living, minlength=len(block.boundary.prompts)).tolist()
            if sum(counts):
                blocks.append(Block.of(block.boundary, counts, start, self.model.dtype))
                start = blocks[-1].rows.stop
        self.blocks = tuple(blocks)
        moved = self.cache[:, :, : len(alive), :, : self.num_tokens]
        self.cache[:, :, : len(rows), :, : self.num_tokens] = moved[:, :, rows]
        self.positions, self.ids = self.positions[rows], self.ids[rows]

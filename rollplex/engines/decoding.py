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

from rollplex.boundary import Boundary
from rollplex.memory.memory import Memory
from rollplex.model.model import Model
from rollplex.model.rectangle import Rectangle
from rollplex.model.scores import MIN_KEYS, MIN_QUERIES, attention_scores
from rollplex.model.text import TextLayer

TURNS = 64
"""Tokens whose rotary angles are made at a time."""


@dataclass(frozen=True, eq=False)
class Block:
    """The rows whose prompts share one boundary, and how they meet its keys."""

    boundary: Boundary
    """Of all the prompts that began together, those without rows included."""
    keys: tuple[torch.Tensor, ...]
    """``[n H, P, D]`` a layer: those of the prompts that have rows, once a prompt."""
    values: tuple[torch.Tensor, ...]
    """Likewise."""
    rows: slice
    """Its rows in the batch, ordered by prompt."""
    rectangle: Rectangle
    """Which rows belong to which prompt."""
    bias: torch.Tensor | None
    """``[n H, 1, P]`` 0 on real prompt tokens, -inf on padding; None where nothing is padded."""

    @classmethod
    def of(cls, boundary: Boundary, counts: Sequence[int], start: int) -> Block:
        """A block with ``counts[i]`` rows of the boundary's prompt i, beginning at row ``start``."""
        rectangle = Rectangle.of(counts, device=boundary.lengths.device)
        # Chosen here, once, and not in every layer of every token.
        keys, values = (
            [rectangle.chosen(layer).flatten(0, 1) for layer in part]
            for part in (boundary.output.keys, boundary.output.values)
        )
        bias = None
        if boundary.padded:
            heads = boundary.output.keys[0].shape[1]
            bias = boundary.bias(rectangle).expand(-1, heads, -1, -1).flatten(0, 1)
        return cls(
            boundary=boundary,
            keys=tuple(keys),
            values=tuple(values),
            rows=slice(start, start + sum(counts)),
            rectangle=rectangle,
            bias=bias,
        )

    def attend(self, index: int, q: torch.Tensor, scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of layer ``index`` over a prompt and a response's own tokens: ``[B H, r, D]``.

        q ``[B, H, r, D]``, its scores ``[B, H, r, t]`` with own keys, own values v ``[B H, t, D]``.
        Three-dimensional products throughout: on the few numbers of a decode step, broadcasting costs more than they do.
        """
        keys, values = self.keys[index], self.values[index]
        prompt = attention_scores(self._grouped(q), keys, self.bias)
        # Joined as a prompt's queries, not as rows: of the two parts, only the response's is small enough to move about.
        weights = torch.softmax(torch.cat((prompt, self._grouped(scores)), dim=-1), dim=-1)
        padded = keys.shape[1]
        attended = self._rows(torch.bmm(weights[..., :padded], values)).flatten(0, 1)
        return attended.baddbmm_(self._rows(weights[..., padded:]).flatten(0, 1), v)

    def _grouped(self, x: torch.Tensor) -> torch.Tensor:
        """Rows ``[B, H, r, *]`` as a prompt's queries ``[n H, W r, *]``."""
        num = self.rectangle.num * x.shape[1]
        return self.rectangle.grouped(x).transpose(1, 2).reshape(num, -1, x.shape[-1])

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        """The way back from ``[n H, W r, *]`` to ``[B, H, r, *]``."""
        apart = x.view(self.rectangle.num, -1, self.rectangle.width, x.shape[1] // self.rectangle.width, x.shape[2])
        return self.rectangle.rows(apart.transpose(1, 2))


class ResponseCache:
    """Keys and values of response tokens, one line a row, allocated once and kept between rollouts."""

    def __init__(self) -> None:
        self._storage: torch.Tensor | None = None

    def lines(self, model: Model, rows: int, length: int, memory: Memory | None = None) -> torch.Tensor:
        """``[L, 2, rows, H, length, D]``, its contents undefined; grown when a rollout is larger than any before.

        At least `MIN_KEYS` long.

        In a memory they are a buffer of its, which it counts and takes away after the rollout.
        """
        layer = model.text.layers[0]
        shape = (len(model.text.layers), 2, rows, layer.num_kv_heads, max(length, MIN_KEYS), layer.head_dim)
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

    def __post_init__(self) -> None:
        self._cos, self._sin = self._angles()
        layer = self.model.text.layers[0]
        queries = max(MIN_QUERIES, layer.num_heads // layer.num_kv_heads)
        # Room for a step's queries, padded to MIN_QUERIES; what is past r stays 0.
        self._queries = self.cache.new_zeros(len(self.ids), layer.num_kv_heads, queries, layer.head_dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row its last token ``[B]``; hidden states ``[B, d]`` that predict the next."""
        text, t = self.model.text, self.num_tokens
        if t and t % TURNS == 0:
            self._cos, self._sin = self._angles()
        x = text.embed(tokens)
        cos, sin = self._cos[t % TURNS], self._sin[t % TURNS]
        for index, layer in enumerate(text.layers):
            x = self._layer(index, layer, x, cos, sin, t)
        self.num_tokens = t + 1
        return text.norm(x)

    def _angles(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``[TURNS, B, 1, D]`` of the next tokens of every row."""
        ahead = self.num_tokens + torch.arange(TURNS, device=self.positions.device)
        cos, sin = self.model.text.rotary.text_angles(self.positions + ahead[:, None], self.model.dtype)
        return cos[:, :, None], sin[:, :, None]

    def _layer(
        self, index: int, layer: TextLayer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, t: int
    ) -> torch.Tensor:
        q, k, v = layer.project(x, cos, sin)
        num, heads = len(x), layer.num_kv_heads
        keys, values = self.cache[index, 0, :num], self.cache[index, 1, :num]
        keys[:, :, t], values[:, :, t] = k, v
        queries = self._queries[:num]
        q = torch.mul(q.unflatten(1, (heads, -1)), layer.head_dim**-0.5, out=queries[:, :, : q.shape[1] // heads])
        scores = self._scores(queries, keys.flatten(0, 1), t + 1)[:, :, : q.shape[2]]
        values = values.flatten(0, 1)[:, : t + 1]
        if len(self.blocks) == 1:
            attended = self.blocks[0].attend(index, q, scores, values)
        else:
            lines = [slice(b.rows.start * heads, b.rows.stop * heads) for b in self.blocks]
            parts = zip(self.blocks, lines, strict=True)
            attended = torch.cat([b.attend(index, q[b.rows], scores[b.rows], values[at]) for b, at in parts])
        return layer.finish(x, attended.view(num, -1))

    def _scores(self, queries: torch.Tensor, keys: torch.Tensor, num: int) -> torch.Tensor:
        """Scores ``[B, H, *, num]`` of queries ``[B, H, *, D]`` with the first of own keys ``[B H, T, D]``.

        What the keys past ``num`` hold, which are there to make `MIN_KEYS`, is not looked at.
        """
        scores = torch.bmm(queries.flatten(0, 1), keys[:, : max(num, MIN_KEYS)].transpose(1, 2))
        return scores.unflatten(0, queries.shape[:2])[..., :num]

    def keep(self, alive: torch.Tensor) -> None:
        """Drop the rows where ``alive [B]`` is False: the others move up."""
        rows = alive.nonzero()[:, 0]
        blocks, start = [], 0
        for block in self.blocks:
            living = block.rectangle.owners()[alive[block.rows].cpu()]
            counts = torch.bincount(living, minlength=len(block.boundary.prompts)).tolist()
            if sum(counts):
                blocks.append(Block.of(block.boundary, counts, start))
                start = blocks[-1].rows.stop
        self.blocks = tuple(blocks)
        moved = self.cache[:, :, : len(alive), :, : self.num_tokens]
        self.cache[:, :, : len(rows), :, : self.num_tokens] = moved[:, :, rows]
        self.positions, self.ids = self.positions[rows], self.ids[rows]
        self._cos, self._sin = self._cos[:, rows], self._sin[:, rows]

"""The vision tower of Qwen2.5-VL, with equal windows attended to in one call.

transformers walks over windows one by one; here patches are ordered so that windows of one length lie side by side
and each length is one batched attention. The result is the same to rounding.

Shapes: S patches, U = S / 4 merge units, e vision width, d text width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import gelu, linear, scaled_dot_product_attention, silu

from rollplex.model.again import made_again
from rollplex.model.fuse import Linear
from rollplex.model.norm import Norm
from rollplex.model.rotary import cos_sin, rotate


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Which patches attend to each other: equal-length runs, each length one batch."""

    order: torch.Tensor
    """``[S]`` permutation that makes the batches contiguous."""
    inverse: torch.Tensor
    """``[S]``, undoes ``order``."""
    batches: tuple[tuple[int, int], ...]
    """(number of runs, length of each), in order."""

    @classmethod
    def of(cls, runs: Sequence[torch.Tensor]) -> Segments:
        """Batches of runs (each a tensor of patch indices), grouped by length."""
        by_length: dict[int, list[torch.Tensor]] = {}
        for run in runs:
            by_length.setdefault(len(run), []).append(run)
        order = torch.cat([run for group in by_length.values() for run in group])
        return cls(order, torch.argsort(order), tuple((len(group), length) for length, group in by_length.items()))


@dataclass(frozen=True, slots=True, eq=False)
class VisionPlan:
    """Everything about a batch of pictures that follows from their grids alone."""

    windows: Segments
    """For windowed blocks; the tower keeps its patches in this order."""
    frames: Segments
    """For blocks with full attention, relative to the windows' order."""
    cos: torch.Tensor
    """``[S, 1, e / heads]`` in the windows' order, see `cos_sin`."""
    sin: torch.Tensor
    """Likewise."""


@dataclass(frozen=True, slots=True, eq=False)
class VisionBlock:
    """Weights of one block."""

    norm1: Norm
    """Before the attention."""
    qkv: Linear
    """``[3 e, e]``."""
    out: Linear
    """``[e, e]``."""
    norm2: Norm
    """Before the feed-forward part."""
    gate_up: Linear
    """``[2 f, e]``."""
    down: Linear
    """``[e, f]``."""
    num_heads: int
    """Attention heads."""
    full_attention: bool
    """Over a whole frame, or within a window."""

    def __call__(self, x: torch.Tensor, plan: VisionPlan) -> torch.Tensor:
        """``[S, e] -> [S, e]``, in the windows' order."""
        qkv = self.qkv(self.norm1(x)).view(len(x), 3, self.num_heads, -1)
        # As transformers turns queries and keys: in float32, whatever the type; but a float64 tower is float64 throughout.
        wide = qkv[:, :2].to(torch.promote_types(x.dtype, torch.float32))
        turned = rotate(wide, plan.cos[:, None], plan.sin[:, None]).to(x.dtype)
        q, k, v = turned[:, 0], turned[:, 1], qkv[:, 2]
        if self.full_attention:
            order = plan.frames.order
            attended = attend(q[order], k[order], v[order], plan.frames.batches)[plan.frames.inverse]
        else:
            attended = attend(q, k, v, plan.windows.batches)
        x = x + self.out(attended)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(silu(gate) * up)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batches: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Attention ``[S, heads, D] -> [S, heads D]`` inside runs that lie side by side."""
    results, start = [], 0
    for runs, length in batches:
        rows = slice(start, start := start + runs * length)
        q_, k_, v_ = (t[rows].unflatten(0, (runs, length)).transpose(1, 2) for t in (q, k, v))
        results.append(scaled_dot_product_attention(q_, k_, v_).transpose(1, 2).flatten(0, 1).flatten(1))
    return results[0] if len(results) == 1 else torch.cat(results)


@dataclass(frozen=True, slots=True, eq=False)
class VisionTower:
    """Weights of the whole tower and its merger."""

    patch_embed: torch.Tensor
    """``[e, channels, frames, height, width]`` of the patch convolution, whose stride is its size."""
    blocks: tuple[VisionBlock, ...]
    """In order."""
    merge_norm: Norm
    """Before merging."""
    merge_in: Linear
    """``[4 e, 4 e]``."""
    merge_out: Linear
    """``[d, 4 e]``."""
    inv_freq: torch.Tensor
    """``[e / heads / 4]`` float32."""
    merge_size: int
    """Patches merged along each side of a picture."""
    window_units: int
    """Merge units along each side of an attention window."""

    def __call__(self, pixels: torch.Tensor, grids: torch.Tensor, *, checkpointed: bool = False) -> torch.Tensor:
        """Features ``[U, d]`` of patches ``[S, C]`` with grids ``[pictures, 3]`` (time, height, width).

        With ``checkpointed`` a block's activations are dropped and made again in the backward pass.
        """
        plan = self.plan(grids.to("cpu"), pixels.device)
        weight = self.patch_embed.flatten(1)
        x = linear(pixels.to(weight.dtype), weight)[plan.windows.order]
        for block in self.blocks:
            x = made_again(partial(block, plan=plan), x) if checkpointed else block(x, plan)
        unit = self.merge_size**2
        merged = self.merge_out(gelu(self.merge_in(self.merge_norm(x).view(-1, unit * x.shape[-1]))))
        return merged[plan.windows.inverse[::unit] // unit]

    def plan(self, grids: torch.Tensor, device: torch.device | str = "cpu") -> VisionPlan:
        """Orders, batches and angles for pictures with these grids."""
        places, frames, windows, start = [], [], [], 0
        for time, height, width in grids.tolist():
            place, window = self._frame(height, width)
            frame = torch.cat(window)  # window after window, as others sum over a frame: the same rounding
            for _ in range(time):
                places.append(place)
                frames.append(start + frame)
                windows.extend(start + w for w in window)
                start += height * width
        by_window = Segments.of(windows)
        place_of = torch.cat(places)[by_window.order]
        freqs = (place_of[..., None].float() * self.inv_freq.to("cpu")).flatten(1)
        cos, sin = cos_sin(freqs[:, None])
        by_frame = Segments.of([by_window.inverse[frame] for frame in frames])

        def moved(s: Segments) -> Segments:
            return Segments(s.order.to(device), s.inverse.to(device), s.batches)

        return VisionPlan(moved(by_window), moved(by_frame), cos.to(device), sin.to(device))

    def _frame(self, height: int, width: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """(row, column) ``[height width, 2]`` of a frame's patches in unit order, and its windows' patches."""
        m, w = self.merge_size, self.window_units
        rows, columns = height // m, width // m
        place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1)
        place = place.view(rows, m, columns, m, 2).transpose(1, 2).reshape(-1, 2)
        patches = torch.arange(height * width).view(rows, columns, m * m)
        windows = [
            patches[top : top + w, left : left + w].flatten()
            for top in range(0, rows, w)
            for left in range(0, columns, w)
        ]
        return place, windows

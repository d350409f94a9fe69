"""M-RoPE positions of a prompt, by the rules of Qwen2.5-VL.

This file knows token kinds and patch grids. It does not know token ids, text or pixels.

Shapes: P prompt tokens; a grid is (frames, height, width) in patches before merging.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import groupby

import torch


class Kind(IntEnum):
    """What a prompt token stands for; the numbers are transformers' ``mm_token_type_ids``."""

    TEXT = 0
    IMAGE = 1
    VIDEO = 2


def num_visual_tokens(grid: torch.Tensor, merge: int) -> int:
    """Tokens of one image or video: its patches over the square of the merge size.

    >>> num_visual_tokens(torch.tensor([1, 4, 6]), merge=2)
    6
    """
    return int(grid.prod()) // merge**2


def mrope_positions(
    kinds: torch.Tensor,
    image_grid_thw: torch.Tensor,
    video_grid_thw: torch.Tensor,
    second_per_grid_ts: Sequence[float],
    *,
    merge: int,
    tokens_per_second: float,
) -> tuple[torch.Tensor, int]:
    """``[3, P]`` positions (temporal, height, width) of ``[P]`` token kinds, and the first response token's.

    Text counts on by one in all three rows. A visual token has its place in the merged grid, from where the
    text stopped; a video's temporal place is in units of 1 / tokens_per_second seconds, rounded down. The text
    that follows starts after the larger *side* of the grid, even where a long video's temporal places go
    further: this is what transformers does, so a response starts one past the largest position of all.

    >>> kinds = torch.tensor([0, 1, 1, 1, 1, 0])
    >>> positions, after = mrope_positions(
    ...     kinds, torch.tensor([[1, 4, 4]]), torch.empty(0, 3, dtype=torch.long), (), merge=2, tokens_per_second=2
    ... )
    >>> positions.tolist(), after
    ([[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]], 4)
    """
    if kinds.numel() == 0:
        raise ValueError("computing positions: found a prompt of 0 tokens. Give at least one token.")
    if len(second_per_grid_ts) != len(video_grid_thw):
        raise ValueError(
            f"computing positions: found {len(video_grid_thw)} videos and {len(second_per_grid_ts)} values of "
            "second_per_grid_ts. Give one for each video: without it, temporal positions would silently change."
        )
    # float32 as in the processor's output: the product is rounded down, so the last bit decides.
    seconds = torch.tensor(list(second_per_grid_ts), dtype=torch.float32)
    grids = {
        Kind.IMAGE: [(grid, torch.tensor(1.0)) for grid in image_grid_thw],
        Kind.VIDEO: [(grid, tokens_per_second * s) for grid, s in zip(video_grid_thw, seconds, strict=True)],
    }
    parts, start = list[torch.Tensor](), 0
    for value, run in groupby(kinds.tolist()):
        kind, remaining = Kind(value), len(list(run))
        if kind is Kind.TEXT:
            parts.append(torch.arange(start, start + remaining).expand(3, -1))
            start += remaining
            continue
        while remaining > 0:
            grid, interval = _next_grid(grids[kind], kind, remaining)
            parts.append(_grid_positions(grid, interval, merge) + start)
            remaining -= parts[-1].shape[1]
            start += int(max(grid[1], grid[2])) // merge
        if remaining < 0:
            raise ValueError(
                f"computing positions: the placeholders of a {kind.name.lower()} end {-remaining} tokens early. "
                "Expand each placeholder to its grid's number of tokens."
            )
    unused = {kind.name.lower(): len(left) for kind, left in grids.items() if left}
    if unused:
        raise ValueError(
            f"computing positions: found grids without placeholder tokens: {unused}. Give one run of placeholders for each."
        )
    positions = torch.cat(parts, dim=1)
    return positions, int(positions.max()) + 1


def _next_grid(
    grids: list[tuple[torch.Tensor, torch.Tensor]], kind: Kind, remaining: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the grid that the next placeholders belong to."""
    if not grids:
        raise ValueError(
            f"computing positions: found {remaining} {kind.name.lower()} placeholder tokens without a grid. "
            "Give one grid for each image or video, in prompt order."
        )
    return grids.pop(0)


def _grid_positions(grid: torch.Tensor, interval: torch.Tensor, merge: int) -> torch.Tensor:
    """``[3, tokens]`` places within one grid, frames outermost, counted from zero."""
    frames, height, width = grid[0], grid[1] // merge, grid[2] // merge
    temporal = (torch.arange(int(frames)) * interval).long()
    places = torch.meshgrid(temporal, torch.arange(int(height)), torch.arange(int(width)), indexing="ij")
    return torch.stack(places).reshape(3, -1)

"""Chunks of a list of tensors, equal in bytes: how a streamed update cuts what it cannot hold at once.

It knows sizes and places. It does not know what the elements mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

ALIGNMENT = 16
"""Chunks begin at multiples of this many elements: 64 bytes of float32, as torch aligns its own tensors."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of one tensor, and where they lie in their chunk."""

    tensor: int
    """Which tensor of the list."""
    start: int
    """First element of the flattened tensor."""
    stop: int
    """One past the last."""
    offset: int
    """Place of the first element in the chunk."""

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The elements where they belong, in the order of storage: a flat view that shares bytes and version counter."""
        whole = tensors[self.tensor].detach()
        # A weight that is shared with a tensor-parallel trainer may lie by columns.
        return (whole if whole.is_contiguous() else whole.t()).view(-1)[self.start : self.stop]

    def within(self, chunk: torch.Tensor) -> torch.Tensor:
        """The elements in a flat tensor of the chunk's."""
        return chunk[self.offset : self.offset + self.stop - self.start]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Pieces that are moved together."""

    pieces: tuple[Piece, ...]
    """In order, one after another."""
    num: int
    """Elements in all."""


def chunks(sizes: Sequence[int], largest: int) -> tuple[Chunk, ...]:
    """The fewest chunks of at most ``largest`` elements for tensors of such sizes, alike in size; tensors are cut.

    >>> [chunk.num for chunk in chunks([100, 20], 64)]
    [64, 56]
    >>> chunks([100, 20], 64)[1].pieces
    (Piece(tensor=0, start=64, stop=100, offset=0), Piece(tensor=1, start=0, stop=20, offset=36))
    """
    if largest < ALIGNMENT:
        raise ValueError(f"cutting tensors into chunks of at most {largest} elements: it must be at least {ALIGNMENT}")
    total = sum(sizes)
    num = max(-(-total // (largest // ALIGNMENT * ALIGNMENT)), 1)
    length = -(-total // num // ALIGNMENT) * ALIGNMENT
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    made = []
    for first in range(0, total, max(length, 1)):
        last = min(first + length, total)
        pieces = tuple(
            Piece(index, max(first - start, 0), min(last, end) - start, max(start - first, 0))
            for index, (start, end) in enumerate(pairwise(starts))
            if start < last and end > first
        )
        made.append(Chunk(pieces, last - first))
    return tuple(made)

"""Logical parameters into local matrices and out of them: what a checkpoint has, and what a rank's tensors hold of it.

It follows layouts, block by block. It does not know which engine they belong to, or whether bytes are shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from rollplex.sharing.layout import Block, Layout


@torch.no_grad()
def fill(layouts: Iterable[Layout], matrices: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    """Write a rank's part of a state dict into its matrices; padding becomes 0.

    >>> from rollplex.sharing.layout import Piece
    >>> half = Layout(tensor="w", pieces=(Piece(name="w", rows=4, columns=2),), axis="rows", tp=2, rank=1)
    >>> local = {"w": torch.zeros(2, 2)}
    >>> fill([half], local, {"w": torch.arange(8.0).view(4, 2)})
    >>> local["w"]
    tensor([[4., 5.],
            [6., 7.]])
    """
    for layout in layouts:
        matrix = matrices[layout.tensor]
        matrix.zero_()
        for block in layout.held:
            rectangle(layout, matrix, block).copy_(_part(_matrix(state[block.name]), block))


@torch.no_grad()
def collect(
    ranks: Iterable[tuple[Sequence[Layout], Mapping[str, torch.Tensor]]], shapes: Mapping[str, Sequence[int]]
) -> dict[str, torch.Tensor]:
    """The logical parameters that ranks hold together, in the shapes of a checkpoint; NaN where nobody has a number.

    >>> from rollplex.sharing.layout import Piece
    >>> half = Layout(tensor="w", pieces=(Piece(name="w", rows=2),), axis="rows", tp=2, rank=1)
    >>> collect([([half], {"w": torch.ones(1, 1)})], {"w": (2,)})["w"]
    tensor([nan, 1.])
    """
    whole: dict[str, torch.Tensor] = {}
    for layouts, matrices in ranks:
        for layout in layouts:
            matrix = matrices[layout.tensor]
            for block in layout.held:
                if block.name not in whole:
                    whole[block.name] = torch.full(tuple(shapes[block.name]), torch.nan, dtype=matrix.dtype)
                _part(_matrix(whole[block.name]), block).copy_(rectangle(layout, matrix, block))
    return whole


def rectangle(layout: Layout, matrix: torch.Tensor, block: Block) -> torch.Tensor:
    """The place of a logical rectangle in a local matrix, as a view; it must lie within one block of the layout."""
    top = 0
    for own in layout.blocks:
        if own.common(block) == block:
            row, column = top + block.row - own.row, block.column - own.column
            return matrix[row : row + block.rows, column : column + block.columns]
        top += own.rows
    raise ValueError(f"looking for {block} in {layout.tensor}: it holds {layout.blocks[:4]}")


def _matrix(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter as a layout sees it: ``[out, in]``; a vector has one column."""
    return parameter.view(parameter.shape[0], -1)


def _part(matrix: torch.Tensor, block: Block) -> torch.Tensor:
    return matrix[block.row : block.row + block.rows, block.column : block.column + block.columns]

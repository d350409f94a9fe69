"""How one engine lays one of its tensors out on one rank, as data.

Every layout of tensor parallelism met so far is a stack of rectangles: rows and columns of logical parameters, one
above the other. `Layout` says by which rule (axis, degree, packing, padding); `Layout.blocks` says which rectangles.
It knows no engine and no model: `rollplex.sharing.descriptors` has those.

A logical parameter is what a checkpoint names, seen as a matrix: ``[out, in]``; a vector is a matrix of one column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Literal

Storage = Literal["rows", "columns"]
"""Whose elements lie side by side: those of a row (``[out, in]`` in memory), or of a column (``[in, out]``)."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A logical parameter that an engine's tensor is packed from."""

    name: str
    """The checkpoint's name."""
    rows: int
    """Outputs."""
    columns: int = 1
    """Inputs; 1 for a vector."""
    unit: int = 1
    """Rows that stay together, such as those of a head; whole units are replicated where shards outnumber them."""
    first_row: int = 0
    """Where it begins in the parameter, if it is a part of one that a checkpoint keeps fused."""


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of a logical parameter."""

    name: str
    """Of the parameter."""
    row: int
    """First row; rows at and beyond the parameter's own number are padding."""
    rows: int
    """How many."""
    column: int
    """First column."""
    columns: int
    """How many."""

    def common(self, other: Block) -> Block | None:
        """The rectangle that two have in common, or None.

        >>> Block("w", 0, 4, 0, 8).common(Block("w", 2, 4, 4, 4))
        Block(name='w', row=2, rows=2, column=4, columns=4)
        """
        row, column = max(self.row, other.row), max(self.column, other.column)
        rows = min(self.row + self.rows, other.row + other.rows) - row
        columns = min(self.column + self.columns, other.column + other.columns) - column
        if self.name != other.name or rows <= 0 or columns <= 0:
            return None
        return Block(self.name, row, rows, column, columns)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One tensor of one engine on one rank.

    Two ranks' halves of a merged projection, each the stack of its parts:

    >>> parts = (Piece(name="gate", rows=8, columns=4), Piece(name="up", rows=8, columns=4))
    >>> [(b.name, b.row, b.rows) for b in Layout(tensor="gate_up", pieces=parts, axis="rows", tp=2, rank=1).blocks]
    [('gate', 4, 4), ('up', 4, 4)]
    """

    tensor: str
    """The engine's own name for it."""
    pieces: tuple[Piece, ...]
    """What it is packed from, in order; all of one width."""
    axis: Literal["rows", "columns"] | None = None
    """What the ranks divide among them; None: each holds everything."""
    tp: int = 1
    """How many shards there are."""
    rank: int = 0
    """Whose tensor this is."""
    order: tuple[int, ...] | None = None
    """Shard that each rank holds; None: its own number."""
    packing: Literal["stacked", "interleaved"] = "stacked"
    """Each piece divided and the parts stacked; or the pieces interleaved by head group, and the whole divided."""
    groups: int = 1
    """Head groups of an interleaved packing."""
    padded_to: int = 1
    """Rows of every piece are padded to a multiple of this before they are divided, as vocabularies are."""
    storage: Storage = "rows"
    """How the engine stores it of its own accord."""
    transposable: bool = False
    """Whether it is an operand of matrix products alone, which read either storage."""
    min_block_bytes: int | None = None
    """The engine can take it as equal dense blocks of at least so many bytes, a product each; None: only in one."""
    element_bytes: int = 2
    """Bytes of a number."""

    def __post_init__(self) -> None:
        if not self.pieces or len({p.columns for p in self.pieces}) > 1:
            raise ValueError(
                f"{self._doing}: its pieces have widths {[p.columns for p in self.pieces]}; give one width"
            )
        if not 0 <= self.rank < self.tp:
            raise ValueError(f"{self._doing}: rank {self.rank} of {self.tp}; ranks are 0 to {self.tp - 1}")
        if self.order is not None and sorted(self.order) != list(range(self.tp)):
            raise ValueError(f"{self._doing}: order {self.order} is no permutation of the {self.tp} shards")

    @property
    def _doing(self) -> str:
        return f"laying out {self.tensor}"

    @property
    def shard(self) -> int:
        """Which shard this rank holds."""
        return self.rank if self.order is None else self.order[self.rank]

    @property
    def columns(self) -> int:
        """Width of the local matrix."""
        return self.blocks[0].columns

    @property
    def rows(self) -> int:
        """Height of the local matrix, padding included."""
        return sum(block.rows for block in self.blocks)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The rectangles that the local matrix is stacked from, top to bottom."""
        if self.axis == "columns":
            return tuple(self._columns_of(piece) for piece in self.pieces)
        if self.packing == "interleaved":
            return tuple(self._slice_of(tuple(self._interleaved())))
        return tuple(self._rows_of(piece) for piece in self.pieces)

    @cached_property
    def held(self) -> tuple[Block, ...]:
        """The rectangles without their padding."""
        real = [Block(p.name, p.first_row, p.rows, 0, p.columns) for p in self.pieces]
        found = (block.common(piece) for block in self.blocks for piece in real)
        return tuple(block for block in found if block is not None)

    @property
    def num_elements(self) -> int:
        """Numbers of the checkpoint that this rank holds; padding is not counted."""
        return sum(block.rows * block.columns for block in self.held)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return self.num_elements * self.element_bytes

    def on(self, rank: int) -> Layout:
        """The same tensor on another rank."""
        return replace(self, rank=rank)

    def _padded(self, piece: Piece) -> int:
        return -(-piece.rows // self.padded_to) * self.padded_to

    def _rows_of(self, piece: Piece) -> Block:
        rows = self._padded(piece)
        if self.axis is None:
            return Block(piece.name, piece.first_row, rows, 0, piece.columns)
        units, rest = divmod(rows, piece.unit)
        if rest or (units % self.tp and self.tp % units):
            raise ValueError(
                f"{self._doing}: the {rows} rows of {piece.name} are {rows / piece.unit:g} units of {piece.unit}, which "
                f"{self.tp} shards can neither divide nor replicate evenly. Choose another TP degree."
            )
        share = max(units // self.tp, 1)
        first = self.shard * units // self.tp  # below one unit a shard, neighbours hold the same unit
        return Block(piece.name, piece.first_row + first * piece.unit, share * piece.unit, 0, piece.columns)

    def _columns_of(self, piece: Piece) -> Block:
        if piece.columns % (self.tp * piece.unit):
            raise ValueError(
                f"{self._doing}: the {piece.columns} columns of {piece.name}, in units of {piece.unit}, do not divide "
                f"by {self.tp} shards. Choose another TP degree."
            )
        width = piece.columns // self.tp
        return Block(piece.name, piece.first_row, self._padded(piece), self.shard * width, width)

    def _interleaved(self) -> Iterator[Block]:
        for piece in self.pieces:
            if piece.rows % self.groups:
                raise ValueError(f"{self._doing}: {piece.rows} rows of {piece.name} in {self.groups} head groups")
        for group in range(self.groups):
            for piece in self.pieces:
                rows = piece.rows // self.groups
                yield Block(piece.name, piece.first_row + group * rows, rows, 0, piece.columns)

    def _slice_of(self, whole: tuple[Block, ...]) -> Iterator[Block]:
        total = sum(block.rows for block in whole)
        if self.axis is None:
            yield from whole
            return
        if total % self.tp:
            raise ValueError(
                f"{self._doing}: {total} rows do not divide by {self.tp} shards. Choose another TP degree."
            )
        first, last = self.shard * total // self.tp, (self.shard + 1) * total // self.tp
        start = 0
        for block in whole:
            top, bottom = max(first, start), min(last, start + block.rows)
            if top < bottom:
                yield Block(block.name, block.row + top - start, bottom - top, block.column, block.columns)
            start += block.rows


def replicated(shapes: Mapping[str, Sequence[int]], element_bytes: int = 2) -> tuple[Layout, ...]:
    """Layouts of tensors that every rank holds whole, such as buffers, which no checkpoint names.

    >>> [(layout.tensor, layout.rows, layout.columns) for layout in replicated({"inv_freq": (16,)})]
    [('inv_freq', 16, 1)]
    """
    return tuple(
        Layout(
            tensor=name,
            pieces=(Piece(name=name, rows=shape[0], columns=prod(shape[1:])),),
            element_bytes=element_bytes,
        )
        for name, shape in shapes.items()
    )

"""Engines that really lay numbers out, written without `Layout`: what layouts and verdicts are held against."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rollplex.sharing.layout import Layout

Numbers: TypeAlias = npt.NDArray[np.int64]


def logical(layouts: list[Layout]) -> dict[str, Numbers]:
    """Every parameter as a matrix of numbers that occur once; rows of padding are numbered too."""
    values: dict[str, Numbers] = {}
    start = 0
    for piece in (piece for layout in layouts for piece in layout.pieces):
        if piece.name not in values:
            rows = max(-(-piece.rows // other.padded_to) * other.padded_to for other in layouts)
            values[piece.name] = np.arange(start, start := start + rows * piece.columns).reshape(rows, piece.columns)
    return values


def load(layout: Layout, values: dict[str, Numbers]) -> Numbers:
    """The local matrix of a layout, by splitting and concatenating as engines' loaders do."""
    padded = [values[p.name][: -(-p.rows // layout.padded_to) * layout.padded_to] for p in layout.pieces]
    shard = layout.rank if layout.order is None else layout.order[layout.rank]
    if layout.axis is None:
        return _interleave(padded, layout.groups) if layout.packing == "interleaved" else np.concatenate(padded)
    if layout.axis == "columns":
        return np.concatenate([np.split(p, layout.tp, axis=1)[shard] for p in padded])
    if layout.packing == "interleaved":
        return np.split(_interleave(padded, layout.groups), layout.tp)[shard]
    parts = []
    for piece, value in zip(layout.pieces, padded, strict=True):
        units = value.reshape(-1, piece.unit, piece.columns)
        copies = max(layout.tp // len(units), 1)  # fewer heads than shards: each head is loaded by several
        parts.append(np.split(units.repeat(copies, axis=0), layout.tp)[shard].reshape(-1, piece.columns))
    return np.concatenate(parts)


def _interleave(parts: list[Numbers], groups: int) -> Numbers:
    width = parts[0].shape[1]
    return np.concatenate([part.reshape(groups, -1, width) for part in parts], axis=1).reshape(-1, width)


def brute_force(inner: Layout, owner: Layout) -> int | None:
    """The case by comparing byte maps element by element; None if an element is not in the owner's matrix."""
    values = logical([inner, owner])
    mine, theirs = load(inner, values), load(owner, values)
    index = {number: i for i, number in enumerate(theirs.ravel().tolist())}
    if any(number not in index for number in mine.ravel().tolist()):
        return None
    places = np.array([index[number] for number in mine.ravel().tolist()]).reshape(mine.shape)
    row, column = np.divmod(places, theirs.shape[1])
    maps = {"rows": places, "columns": column * theirs.shape[0] + row}
    same = inner.storage == owner.storage
    if same and (_dense(maps[owner.storage], owner.storage) or _blocks(places, inner, owner)):
        return 1
    either = inner.transposable and owner.transposable
    return 2 if either and any(_dense(places, storage) for storage, places in maps.items()) else 3


def _dense(places: Numbers, storage: str) -> bool:
    run = places.ravel() if storage == "rows" else places.T.ravel()
    return bool((np.diff(run) == 1).all())


def _blocks(places: Numbers, inner: Layout, owner: Layout) -> bool:
    """Whether some number of equal blocks, whole rows of the owner, lies at one stride."""
    rows, columns = places.shape
    if inner.min_block_bytes is None or "columns" in (inner.storage, owner.storage) or columns != owner.columns:
        return False
    for num in range(2, rows + 1):
        if rows % num or rows // num * columns * inner.element_bytes < inner.min_block_bytes:
            continue
        blocks = places.reshape(num, -1)
        steps = np.diff(blocks[:, 0])
        if all(_dense(block, "rows") for block in blocks) and (steps == steps[0]).all() and steps[0] > 0:
            return True
    return False

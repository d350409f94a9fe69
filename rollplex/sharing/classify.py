"""Whether two engines can hold one copy of a parameter: the byte-equality criterion.

A tensor of one engine shares the other's bytes if it is a view of them: the same byte for every logical element after
transforms of metadata alone (offset, shape, strides), and dense, as kernels and collectives need it.

Case 1: nested or identical, in the storage that both engines use of their own accord.
Case 2: dense once the other storage is chosen, such as ``[in, out]`` for row-parallel weights; read as a transpose.
Case 3: no such view. The engine's copy is filled by copying after every update.

It compares layouts; it knows no names of models or engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rollplex.sharing.layout import Layout, Storage

Case = Literal[1, 2, 3]
"""Nested or identical; transposed storage; incompatible."""

NAMES: dict[Case, str] = {1: "nested or identical", 2: "transposed storage", 3: "incompatible"}
"""What a person calls each case."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Where a tensor lies in another: the arguments of ``as_strided`` on the other's storage, in elements."""

    tensor: str
    """The tensor that owns the bytes."""
    storage: Storage
    """How the owner must be stored."""
    offset: int
    """Of the first element."""
    shape: tuple[int, ...]
    """``(rows, columns)``, or ``(blocks, rows, columns)``."""
    strides: tuple[int, ...]
    """Elements from one index to the next."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """The verdict on one tensor."""

    tensor: str
    """The tensor that is or is not a view."""
    case: Case
    """1, 2 or 3."""
    why: str
    """What was found."""
    view: View | None = None
    """How to make the view; None in case 3."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive rows of a tensor that are consecutive rows in another."""

    owner: Layout
    row: int
    column: int
    rows: int


def classify(train: Layout, rollout: Sequence[Layout]) -> Sharing:
    """The verdict on a trainer's tensor against the rollout tensors on the same device.

    The larger of two owns the bytes; with rollout shards no smaller than training shards that is the rollout's.

    >>> from rollplex.sharing.layout import Piece
    >>> weight = (Piece(name="down", rows=4, columns=8),)
    >>> ours = Layout(tensor="down", pieces=weight, axis="columns", tp=4, rank=1, transposable=True)
    >>> engine = Layout(tensor="down_proj", pieces=weight, axis="columns", tp=2, rank=0, transposable=True)
    >>> classify(ours, [engine]).case, classify(ours, [engine]).view.strides
    (2, (1, 4))
    """
    outcome = fit(train, rollout)
    if outcome is not None:
        return outcome
    names = {piece.name for piece in train.pieces}
    partners = [r for r in rollout if not names.isdisjoint(p.name for p in r.pieces)]
    reverse = [fit(partner, [train]) for partner in partners]
    held = [sharing for sharing in reverse if sharing is not None]
    if held and len(held) == len(reverse):
        return max(held, key=lambda sharing: sharing.case)
    return Sharing(
        tensor=train.tensor,
        case=3,
        why="neither shard lies within the other: their boundaries or the devices' ranks do not nest",
    )


def partners(train: Sequence[Layout], engine: Sequence[Layout]) -> dict[str, list[Layout]]:
    """For each of the trainer's tensors the engine's with a parameter in common; both must hold the same names.

    >>> from rollplex.sharing.layout import Piece
    >>> norm = Layout(tensor="norm", pieces=(Piece(name="norm", rows=8),))
    >>> partners([norm], [norm])["norm"] == [norm]
    True
    """
    homes = {piece.name: layout for layout in engine for piece in layout.pieces}
    ours = {piece.name for layout in train for piece in layout.pieces}
    if ours != set(homes):
        raise ValueError(
            f"matching parameters: only the trainer has {sorted(ours - set(homes))}, only the engine has "
            f"{sorted(set(homes) - ours)}. Both must describe the same model."
        )
    return {
        layout.tensor: list({homes[p.name].tensor: homes[p.name] for p in layout.pieces}.values()) for layout in train
    }


def fit(inner: Layout, owners: Sequence[Layout]) -> Sharing | None:
    """The verdict on ``inner`` as a view of one of ``owners``; None if they do not hold all its elements."""
    runs = _runs(inner, owners)
    if runs is None:
        return None
    if len({run.owner.tensor for run in runs}) > 1:
        spread = ", ".join(dict.fromkeys(run.owner.tensor for run in runs))
        return Sharing(tensor=inner.tensor, case=3, why=f"its rows are spread over {spread}")
    return _one_run(inner, runs[0]) if len(runs) == 1 else _many_runs(inner, runs)


def _runs(inner: Layout, owners: Sequence[Layout]) -> list[_Run] | None:
    """The tensor as maximal runs of rows that are consecutive in an owner; None if an element is missing."""
    runs: list[_Run] = []
    for block in inner.blocks:
        done = 0
        while done < block.rows:
            run = _find(block.name, block.row + done, block.rows - done, block.column, block.columns, owners)
            if run is None:
                return None
            last = runs[-1] if runs else None
            if last and last.owner is run.owner and last.column == run.column and last.row + last.rows == run.row:
                runs[-1] = _Run(last.owner, last.row, last.column, last.rows + run.rows)
            else:
                runs.append(run)
            done += run.rows
    return runs


def _find(name: str, row: int, rows: int, column: int, columns: int, owners: Sequence[Layout]) -> _Run | None:
    for owner in owners:
        above = 0
        for block in owner.blocks:
            inside = block.name == name and block.row <= row < block.row + block.rows
            if inside and block.column <= column and column + columns <= block.column + block.columns:
                found = min(rows, block.row + block.rows - row)
                return _Run(owner, above + row - block.row, column - block.column, found)
            above += block.rows
    return None


def _one_run(inner: Layout, run: _Run) -> Sharing:
    owner = run.owner
    dense: dict[Storage, bool] = {
        "rows": inner.columns == owner.columns or run.rows == 1,
        "columns": run.rows == owner.rows or inner.columns == 1,
    }
    own_accord = inner.storage == owner.storage
    if own_accord and dense[owner.storage]:
        whole = (inner.rows, inner.columns) == (owner.rows, owner.columns)
        why = "identical" if whole else "one dense run of the owner"
        return Sharing(tensor=inner.tensor, case=1, why=why, view=_view(inner, run, owner.storage))
    if inner.transposable and owner.transposable:
        storages: tuple[Storage, ...] = ("columns", "rows")
        for storage in storages:
            if dense[storage]:
                why = f"dense once {'columns' if storage == 'columns' else 'rows'} are contiguous"
                return Sharing(tensor=inner.tensor, case=2, why=why, view=_view(inner, run, storage))
        return Sharing(tensor=inner.tensor, case=3, why="dense in neither storage")
    why = "dense only in the other storage, and not an operand of matrix products alone"
    return Sharing(tensor=inner.tensor, case=3, why=why)


def _view(inner: Layout, run: _Run, storage: Storage) -> View:
    owner = run.owner
    strides = (owner.columns, 1) if storage == "rows" else (1, owner.rows)
    offset = run.row * strides[0] + run.column * strides[1]
    return View(tensor=owner.tensor, storage=storage, offset=offset, shape=(run.rows, inner.columns), strides=strides)


def _many_runs(inner: Layout, runs: Sequence[_Run]) -> Sharing:
    """Equal runs at one stride are a view with one more dimension, which the engine may or may not be able to use."""
    owner, rows = runs[0].owner, runs[0].rows
    steps = {after.row - before.row for before, after in pairwise(runs)}
    num_bytes = rows * inner.columns * inner.element_bytes

    def refused(why: str) -> Sharing:
        return Sharing(tensor=inner.tensor, case=3, why=why)

    if len(steps) > 1 or min(steps) < 0 or any(run.rows != rows for run in runs):
        return refused(f"{len(runs)} runs of {', '.join(str(run.rows) for run in runs[:4])} rows at no single stride")
    if inner.columns != owner.columns or inner.storage != "rows" or owner.storage != "rows":
        return refused(f"{len(runs)} runs that are not whole rows of the owner")
    if inner.min_block_bytes is None:
        return refused(f"{len(runs)} runs, and the engine needs one")
    if num_bytes < inner.min_block_bytes:
        return refused(f"{len(runs)} runs of {num_bytes} bytes, finer than {inner.min_block_bytes}")
    stride = steps.pop() * owner.columns
    view = View(
        tensor=owner.tensor,
        storage="rows",
        offset=runs[0].row * owner.columns,
        shape=(len(runs), rows, inner.columns),
        strides=(stride, owner.columns, 1),
    )
    return Sharing(tensor=inner.tensor, case=1, why=f"{len(runs)} equal dense blocks at one stride", view=view)

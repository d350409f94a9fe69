"""Whose bytes each tensor on one device is: owners that lie in one region of memory, and views of them.

It turns verdicts into places. It holds no memory itself, so it can be pickled and handed to the process that binds the
same region from the other side (`rollplex.sharing.bind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch

from rollplex.sharing.classify import Sharing, View, fit, partners
from rollplex.sharing.layout import Layout, Storage

Side = Literal["trainer", "engine"]
"""Who a tensor belongs to: names may be the same on both sides."""

STAMP_BYTES = 256
"""Head of a region: the version of the weights in it, in cache lines of its own."""
ALIGNMENT_BYTES = 256
"""Tensors begin at multiples of this, as kernels and vector loads like it."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """A tensor that owns a stretch of the region."""

    side: Side
    """Whose tensor it is."""
    layout: Layout
    """What it holds."""
    dtype: torch.dtype
    """Type of its numbers."""
    storage: Storage
    """How it is stored."""
    offset_bytes: int
    """Where it begins in the region."""

    @property
    def nbytes(self) -> int:
        """Its length, padding included."""
        return self.layout.rows * self.layout.columns * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A training rank and the rollout shard on its device, tensor by tensor."""

    train: tuple[Layout, ...]
    """The trainer's tensors."""
    engine: tuple[Layout, ...]
    """The engine's."""
    sharings: Mapping[str, Sharing]
    """Trainer's tensor -> the verdict on it; its view, if it is one of an engine's tensor."""
    reverse: Mapping[str, View]
    """Engine's tensor -> where it lies in a trainer's tensor, for those that are the smaller of two."""
    homes: tuple[Home, ...]
    """The tensors that own the region's bytes."""
    dtypes: Mapping[str, torch.dtype]
    """Trainer's tensor -> type of its numbers."""
    nbytes: int
    """Length of the region."""

    @property
    def private(self) -> tuple[Layout, ...]:
        """The trainer's tensors that share nothing: case 3, copied into the engine's after every update."""
        return tuple(layout for layout in self.train if self.sharings[layout.tensor].case == 3)

    @cached_property
    def layouts(self) -> Mapping[tuple[Side, str], Layout]:
        """Layout of each tensor by side and name."""
        found: dict[tuple[Side, str], Layout] = {}
        found.update((("trainer", layout.tensor), layout) for layout in self.train)
        found.update((("engine", layout.tensor), layout) for layout in self.engine)
        return found

    @cached_property
    def owners(self) -> Mapping[tuple[Side, str], Home]:
        """Where each tensor lies that owns its bytes."""
        return {(home.side, home.layout.tensor): home for home in self.homes}

    @property
    def shared_bytes(self) -> int:
        """Bytes of the trainer's tensors that are the engine's too."""
        return sum(layout.nbytes for layout in self.train) - self.private_bytes

    @property
    def private_bytes(self) -> int:
        """Bytes of the trainer's tensors that share nothing."""
        return sum(layout.nbytes for layout in self.private)


def pair(
    train: Sequence[Layout],
    engine: Sequence[Layout],
    *,
    dtype: torch.dtype,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Pairing:
    """Decide for every tensor of a device whose bytes it is; both sides must hold the same parameters.

    ``dtypes`` names parameters (or buffers) of another type than ``dtype``.

    >>> from rollplex.sharing.layout import Piece
    >>> weight = (Piece(name="down", rows=4, columns=8),)
    >>> ours = Layout(tensor="down", pieces=weight, axis="columns", tp=2, rank=1, transposable=True)
    >>> made = pair([ours], [Layout(tensor="down_proj", pieces=weight, transposable=True)], dtype=torch.float32)
    >>> [(home.layout.tensor, home.storage) for home in made.homes], made.private
    ([('down_proj', 'columns')], ())
    """
    kinds = {layout.tensor: _dtype(layout, dtype, dtypes or {}) for layout in train}
    theirs = {layout.tensor: _dtype(layout, dtype, dtypes or {}) for layout in engine}
    train = [replace(layout, element_bytes=kinds[layout.tensor].itemsize) for layout in train]
    engine = [replace(layout, element_bytes=theirs[layout.tensor].itemsize) for layout in engine]
    sharings, reverse = _verdicts(train, partners(train, engine))
    homes: list[Home] = []
    offset = STAMP_BYTES
    for side, layout, storage in _owners(train, engine, sharings, reverse):
        kind = kinds[layout.tensor] if side == "trainer" else theirs[layout.tensor]
        homes.append(Home(side=side, layout=layout, dtype=kind, storage=storage, offset_bytes=offset))
        offset += -(-homes[-1].nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Pairing(
        train=tuple(train),
        engine=tuple(engine),
        sharings=sharings,
        reverse=reverse,
        homes=tuple(homes),
        dtypes=kinds,
        nbytes=offset,
    )


def _dtype(layout: Layout, dtype: torch.dtype, exceptions: Mapping[str, torch.dtype]) -> torch.dtype:
    kinds = {exceptions.get(piece.name, dtype) for piece in layout.pieces}
    if len(kinds) > 1:
        raise ValueError(
            f"placing {layout.tensor}: its pieces have types {sorted(map(str, kinds))}. A tensor has one type: give "
            "all pieces of a fused tensor the same."
        )
    return kinds.pop()


def _verdicts(
    train: Sequence[Layout], matches: Mapping[str, list[Layout]]
) -> tuple[dict[str, Sharing], dict[str, View]]:
    """The verdict on each of the trainer's tensors, and the engine's tensors that are views of one."""
    sharings: dict[str, Sharing] = {}
    reverse: dict[str, View] = {}
    for layout in train:
        found = fit(layout, matches[layout.tensor])
        if found is None:
            held = [fit(partner, [layout]) for partner in matches[layout.tensor]]
            views = [s.view for s in held if s is not None and s.view is not None]
            if len(views) == len(held) and len({view.storage for view in views}) == 1:
                reverse |= {partner.tensor: view for partner, view in zip(matches[layout.tensor], views, strict=True)}
                worst = max((s for s in held if s is not None), key=lambda s: s.case)
                found = Sharing(tensor=layout.tensor, case=worst.case, why=f"holds the engine's: {worst.why}")
            else:
                found = Sharing(tensor=layout.tensor, case=3, why="neither shard lies within the other")
        sharings[layout.tensor] = found
    return _one_storage(sharings, {layout.tensor: layout.nbytes for layout in train}), reverse


def _one_storage(sharings: dict[str, Sharing], sizes: Mapping[str, int]) -> dict[str, Sharing]:
    """Views of one owner must agree how it is stored; where they do not, the smaller part is copied."""
    bytes_by: dict[str, dict[Storage, int]] = {}
    for name, sharing in sharings.items():
        if sharing.view is not None:
            by_storage = bytes_by.setdefault(sharing.view.tensor, {})
            by_storage[sharing.view.storage] = by_storage.get(sharing.view.storage, 0) + sizes[name]
    best = {owner: max(by_storage, key=lambda s: by_storage[s]) for owner, by_storage in bytes_by.items()}
    return {
        name: Sharing(tensor=name, case=3, why=f"{s.view.tensor} is stored by {best[s.view.tensor]} for others")
        if s.view is not None and s.view.storage != best[s.view.tensor]
        else s
        for name, s in sharings.items()
    }


def _owners(
    train: Sequence[Layout], engine: Sequence[Layout], sharings: Mapping[str, Sharing], reverse: Mapping[str, View]
) -> Iterator[tuple[Side, Layout, Storage]]:
    """The tensors that own bytes, stored as their views need it."""
    wanted: dict[str, Storage] = {s.view.tensor: s.view.storage for s in sharings.values() if s.view is not None}
    for layout in engine:
        if layout.tensor not in reverse:
            yield "engine", layout, wanted.get(layout.tensor, layout.storage)
    larger: dict[str, Storage] = {view.tensor: view.storage for view in reverse.values()}
    for layout in train:
        if layout.tensor in larger:
            yield "trainer", layout, larger[layout.tensor]

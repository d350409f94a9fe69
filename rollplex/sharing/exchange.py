"""What must move after an update so that every device's rollout shard is whole: planned once, carried out every step.

A training rank writes its own part of the shard in place, so that part moves nowhere. The other parts come from the
ranks that have them, straight from their memory into this one; what a rank cannot share (case 3) it copies.
Sources are looked for on the device itself first, then on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rollplex.sharing.bind import Binding
from rollplex.sharing.checkpoint import rectangle
from rollplex.sharing.layout import Block, Layout, Storage
from rollplex.sharing.pairing import Pairing


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A rectangle of a parameter that goes from a trainer's tensor into an engine's."""

    source: int
    """Training rank that has it."""
    target: int
    """Training rank whose device's engine wants it."""
    tensor: str
    """The trainer's tensor that has it."""
    into: str
    """The engine's tensor that gets it."""
    block: Block
    """Which rectangle."""
    order: Storage
    """Its order on the wire: the target's, so that it is received in place."""
    nbytes: int
    """How much."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What one update moved on one rank."""

    version: int
    """Version of the weights that every engine on the device now reads."""
    shared_bytes: int
    """Bytes that the trainer wrote where the engine reads them: not moved at all."""
    copied_bytes: int
    """Bytes copied within the device: case 3, and rectangles that could not be sent or received in place."""
    received_bytes: int
    """Bytes received from other training ranks, straight into the engine's memory."""
    sent_bytes: int
    """Bytes sent to them."""

    @property
    def label(self) -> str:
        """In words, for a trace."""
        return f"version {self.version}: {self.copied_bytes:,} bytes copied, {self.received_bytes:,} received"


def transfers(pairings: Sequence[Pairing]) -> tuple[Transfer, ...]:
    """Everything that moves after an update, over all training ranks and in one order that all ranks share.

    >>> from rollplex.sharing.layout import Piece
    >>> from rollplex.sharing.pairing import pair
    >>> weight = (Piece(name="w", rows=4, columns=2),)
    >>> halves = [Layout(tensor="w", pieces=weight, axis="rows", tp=2, rank=rank) for rank in (0, 1)]
    >>> pairings = [pair([half], [Layout(tensor="w", pieces=weight)], dtype=torch.float32) for half in halves]
    >>> [(t.source, t.target, t.block.row, t.nbytes) for t in transfers(pairings)]
    [(1, 0, 2, 16), (0, 1, 0, 16)]
    """
    held = [_held(pairing) for pairing in pairings]
    found = []
    for target, pairing in enumerate(pairings):
        nearest = sorted(range(len(pairings)), key=lambda rank: (rank - target) % len(pairings))
        for layout in pairing.engine:
            for block in layout.held:
                found += _sources(pairings, held, nearest, layout, block)
    return tuple(found)


def _held(pairing: Pairing) -> dict[str, list[tuple[Layout, Block]]]:
    """Parameter -> the trainer's rectangles of it."""
    held: dict[str, list[tuple[Layout, Block]]] = {}
    for layout in pairing.train:
        for block in layout.held:
            held.setdefault(block.name, []).append((layout, block))
    return held


def _sources(
    pairings: Sequence[Pairing],
    held: Sequence[Mapping[str, list[tuple[Layout, Block]]]],
    nearest: Sequence[int],
    layout: Layout,
    wanted: Block,
) -> Iterator[Transfer]:
    """Where the parts of one rectangle of the first rank's engine come from."""
    target = nearest[0]
    home = pairings[target].owners.get(("engine", layout.tensor))
    order = layout.storage if home is None else home.storage
    missing = [wanted]
    for source in nearest:
        for train, block in held[source].get(wanted.name, ()):
            common = [c for c in (part.common(block) for part in missing) if c is not None]
            missing = [rest for part in missing for rest in subtract(part, block)]
            shared = source == target and pairings[source].sharings[train.tensor].case != 3
            for part in () if shared else common:
                yield Transfer(
                    source=source,
                    target=target,
                    tensor=train.tensor,
                    into=layout.tensor,
                    block=part,
                    order=order,
                    nbytes=part.rows * part.columns * layout.element_bytes,
                )
        if not missing:
            return
    raise ValueError(f"planning how rank {target} gets {layout.tensor}: no training rank holds {missing[0]}")


def subtract(block: Block, other: Block) -> list[Block]:
    """The rectangles that are left of a block without another.

    >>> subtract(Block("w", 0, 4, 0, 4), Block("w", 1, 3, 0, 2))
    [Block(name='w', row=0, rows=1, column=0, columns=4), Block(name='w', row=1, rows=3, column=2, columns=2)]
    """
    common = block.common(other)
    if common is None:
        return [block]
    above, below = common.row - block.row, block.row + block.rows - common.row - common.rows
    left, right = common.column - block.column, block.column + block.columns - common.column - common.columns
    parts = [
        Block(block.name, block.row, above, block.column, block.columns),
        Block(block.name, common.row + common.rows, below, block.column, block.columns),
        Block(block.name, common.row, common.rows, block.column, left),
        Block(block.name, common.row, common.rows, common.column + common.columns, right),
    ]
    return [part for part in parts if part.rows and part.columns]


class Exchange:
    """One rank's part of the plan, over its binding's memory; prepared once, carried out after every update."""

    def __init__(
        self, binding: Binding, plan: Sequence[Transfer], rank: int, group: dist.ProcessGroup | None = None
    ) -> None:
        self.binding = binding
        self._group = group
        self._copies = [(_target(binding, t), _source(binding, t)) for t in plan if t.source == t.target == rank]
        mine = [(tag, t) for tag, t in enumerate(plan) if t.source != t.target]
        self._sends = [(tag, t, _ordered(_source(binding, t), t.order)) for tag, t in mine if t.source == rank]
        self._receives = [(tag, t, _ordered(_target(binding, t), t.order)) for tag, t in mine if t.target == rank]
        staged = [t.nbytes for _, t, place in (*self._sends, *self._receives) if not place.is_contiguous()]
        self.copied_bytes = sum(staged) + sum(t.nbytes for t in plan if t.source == t.target == rank)

    @torch.no_grad()
    def publish(self, version: int) -> Published:
        """Make the device's rollout shard whole and stamp it; all training ranks call it together.

        The stamp is written last: a reader that finds the version finds all of the weights.
        """
        for target, source in self._copies:
            target.copy_(source)
        operations, arrivals = [], []
        for tag, transfer, place in self._sends:
            operations.append(
                (tag, dist.P2POp(dist.isend, place.contiguous(), self._peer(transfer.target), self._group, tag))
            )
        for tag, transfer, place in self._receives:
            wire = place
            if not place.is_contiguous():
                wire = torch.empty(place.shape, dtype=place.dtype, device=place.device)
                arrivals.append((place, wire))
            operations.append((tag, dist.P2POp(dist.irecv, wire, self._peer(transfer.source), self._group, tag)))
        # In the plan's order on every rank: back ends without tags match messages by their order.
        ordered = [operation for _, operation in sorted(operations, key=lambda item: item[0])]
        for work in dist.batch_isend_irecv(ordered) if ordered else ():
            work.wait()
        for place, wire in arrivals:
            place.copy_(wire)
        self.binding.stamp.close(version)
        return Published(
            version=version,
            shared_bytes=self.binding.pairing.shared_bytes,
            copied_bytes=self.copied_bytes,
            received_bytes=sum(transfer.nbytes for _, transfer, _ in self._receives),
            sent_bytes=sum(transfer.nbytes for _, transfer, _ in self._sends),
        )

    def _peer(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)


def _source(binding: Binding, transfer: Transfer) -> torch.Tensor:
    """The rectangle where the trainer writes it: in the engine's tensor if that is the same bytes."""
    view = binding.pairing.sharings[transfer.tensor].view
    if view is not None:
        owner = binding.pairing.layouts["engine", view.tensor]
        return rectangle(owner, binding.engine[view.tensor], transfer.block)
    own = binding.pairing.layouts["trainer", transfer.tensor]
    return rectangle(own, binding.trainer[transfer.tensor], transfer.block)


def _target(binding: Binding, transfer: Transfer) -> torch.Tensor:
    layout = binding.pairing.layouts["engine", transfer.into]
    return rectangle(layout, binding.engine[transfer.into], transfer.block)


def _ordered(matrix: torch.Tensor, order: Storage) -> torch.Tensor:
    return matrix if order == "rows" else matrix.T

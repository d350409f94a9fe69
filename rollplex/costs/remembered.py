"""Costs that are asked for once: candidates of one plan share most of their phases."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from rollplex.costs.costs import Costs, Order, Piece


@dataclass(eq=False)
class Remembered:
    """Another source's pieces, kept by what they depend on.

    ``key`` must tell apart whatever makes two sources of one ``memory`` differ. Lengths are told apart by identity, so the
    draws must be kept as long as the memory.
    """

    costs: Costs
    """Where pieces come from."""
    key: Hashable
    """What the pieces depend on besides the order."""
    memory: dict[Hashable, list[Piece]] = field(default_factory=dict)
    """Shared by the candidates."""

    def pieces(self, order: Order) -> list[Piece]:
        """The same pieces, asked for once."""
        key = (self.key, order.field, id(order.draw), order.devices, order.handoff, order.pool, order.streamed)
        if key not in self.memory:
            self.memory[key] = self.costs.pieces(order)
        return self.memory[key]

"""How models are cut over devices, and what the residency policy costs in time.

It knows degrees and shares. What they cost is the business of a source of costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollplex.bounds import COUNT, EFFICIENCY, NUMBER, ONE_OR_MORE, expect
from rollplex.costs.geometry import Geometry
from rollplex.hardware import Link


class PlacementError(ValueError):
    """Models that cannot be cut, or devices that cannot be divided, as a placement wants it."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How models are cut, and what the residency policy costs in time."""

    train_tp: int = 8
    """Tensor-parallel degree of actor and reference."""
    rollout_tp: int = 4
    """Tensor-parallel degree of an engine replica."""
    recompute: bool = True
    """Whether backward passes run the forward again."""
    host_state: bool = True
    """Whether FP32 master and moments live in host memory and are streamed through the device."""
    shard_optimizer: bool = False
    """Whether master and moments are sharded over data-parallel ranks."""
    delta: float = 1.0
    """Share of the weights that a transfer between pools sends (sparse deltas send few, with their indices)."""
    sites: int = 0
    """Sites that the rollout pool is spread over, each behind ``between_sites``; 0: same site, ordinary links."""
    between_sites: Link | None = None
    """The link to those sites."""
    accepted: float = 1.0
    """Tokens accepted for each decode iteration: above 1 with speculative drafts."""

    def __post_init__(self) -> None:
        doing = "making a Placement"
        expect(doing, vars(self), train_tp=COUNT, rollout_tp=COUNT, sites=NUMBER)
        expect(doing, vars(self), delta=EFFICIENCY, accepted=ONE_OR_MORE)
        if self.sites and self.between_sites is None:
            raise ValueError(
                f"{doing}: rollouts run on {self.sites} sites, and no link leads there; give between_sites"
            )

    @property
    def unit(self) -> int:
        """Devices that a pool has a multiple of."""
        return max(self.train_tp, self.rollout_tp)

    def expect(self, geometry: Geometry) -> None:
        """Refuse to cut a model in ways that its heads do not divide into."""
        for what, ways in (("training", self.train_tp), ("rollout", self.rollout_tp)):
            if not geometry.can_cut(ways):
                possible = [str(n) for n in range(1, geometry.heads + 1) if geometry.can_cut(n)]
                raise PlacementError(
                    f"cutting {geometry.name} {ways} ways for {what}: its {geometry.heads} heads, {geometry.kv_heads} of "
                    f"keys and values, do not divide so. Choose one of {', '.join(possible)}."
                )

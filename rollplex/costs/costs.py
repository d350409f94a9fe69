"""What a phase costs: pieces of work in seconds, from whatever source.

A simulator asks for the pieces of one slot and puts them on a clock. It does not know where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, Protocol, get_args

from rollplex.bounds import AMOUNT, COUNT, SHARE, expect
from rollplex.costs.workload import Draw

Kind = Literal["decode", "compute", "copy", "host"]
"""What a piece competes for: memory bandwidth, matrix units, links, or the host's processor."""

FIELDS = ("rollout", "rewards", "policy_prefix", "reference_prefix", "suffix", "update", "published")
"""What phases write, and costs are asked for."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A bounded piece of a phase's work: a tick to be."""

    label: str
    """What the tick will say."""
    seconds: float
    """Time it takes alone."""
    kind: Kind = "compute"
    """What it competes for."""
    ready: tuple[int, ...] = ()
    """Parts (prompts) that are complete when it ends."""
    part: int | None = None
    """The part that it works on; with a streamed input it waits for that part."""
    busy: float = 1.0
    """Share of the pool's devices that it occupies."""
    holds: int = 0
    """Bytes a device holds besides the contracts' objects when it ends: the rollout's KV so far."""

    def __post_init__(self) -> None:
        # One comparison for the many pieces that are well; words for the one that is not.
        if not (0 <= self.seconds < inf and 0 <= self.busy <= 1 and self.kind in get_args(Kind)):
            doing = f"making the piece of work {self.label!r}"
            expect(doing, {"seconds": self.seconds, "busy": self.busy}, seconds=AMOUNT, busy=SHARE)
            raise ValueError(f"{doing}: it is of kind {self.kind!r}; give one of {', '.join(get_args(Kind))}")

    def times(self, factor: float) -> Piece:
        """The same piece, so many times as long."""
        return replace(self, seconds=self.seconds * factor)


@dataclass(frozen=True, kw_only=True)
class Order:
    """A slot's phase, asked for its cost."""

    field: str
    """The `Step` field that the phase writes: what kind of phase it is."""
    draw: Draw
    """The lengths of the step."""
    devices: int
    """Devices of the pool that it runs on."""
    handoff: bool = False
    """For decode: whether it starts from the actor's boundary and runs no prefill."""
    pool: str = "all"
    """Name of that pool."""
    streamed: bool = False
    """Whether it works on parts one by one, as they come."""


class Costs(Protocol):
    """Turns orders into pieces."""

    def pieces(self, order: Order) -> list[Piece]:
        """The work of one phase, in order."""
        ...


@dataclass(frozen=True)
class Given:
    """Seconds by hand, for each field that a phase writes; a field that is not named costs nothing.

    Decode is cut into equal pieces, and prompts complete in order, evenly: enough for a streaming schedule.

    >>> from rollplex.costs.workload import Workload
    >>> Given({"rollout": 2.0}).pieces(Order(field="update", draw=Workload().draw(), devices=1))
    []
    """

    seconds: Mapping[str, float]
    """Field -> seconds, e.g. ``{"rollout": 80.0, "policy_prefix": 20.0}``."""
    num_pieces: int = 16
    """Pieces that a phase is cut into."""
    prefill_s: float = 0.0
    """The part of ``rollout`` that a handed-over boundary saves."""
    kinds: Mapping[str, Kind] = field(
        default_factory=lambda: {"rollout": "decode", "rewards": "host", "published": "copy"}
    )
    """What each field's phase competes for; ``compute`` where not named."""

    def __post_init__(self) -> None:
        _expect_fields("giving costs by hand", self.seconds)
        expect("giving costs by hand", vars(self), num_pieces=COUNT)
        expect("giving costs by hand", self.seconds, **dict.fromkeys(self.seconds, AMOUNT))
        if not 0 <= self.prefill_s <= self.seconds.get("rollout", 0.0):
            raise ValueError(
                f"giving costs by hand: prefill_s is {self.prefill_s!r}, and it is a part of the rollout's "
                f"{self.seconds.get('rollout', 0.0)!r} s; give at most as much"
            )

    def pieces(self, order: Order) -> list[Piece]:
        """Equal pieces that add up to the given seconds."""
        total = self.seconds.get(order.field, 0.0)
        if order.field == "rollout" and order.handoff:
            total -= self.prefill_s
        if total <= 0 and order.field != "rewards":  # rewards that cost nothing are announced all the same
            return []
        kind = self.kinds.get(order.field, "compute")
        prompts = order.draw.num_prompts
        if order.field in ("rollout", "rewards", "suffix"):
            each = total / prompts
            done = order.field != "suffix"
            return [Piece(f"group {i}", each, kind, ready=(i,) if done else (), part=i) for i in range(prompts)]
        return [Piece(f"part {i}", total / self.num_pieces, kind) for i in range(self.num_pieces)]


@dataclass(frozen=True)
class Scaled:
    """Another source's costs, some of them multiplied: for sensitivity, and for mechanisms that speed a phase up."""

    costs: Costs
    """Where the pieces come from."""
    factors: Mapping[str, float]
    """Field -> factor on the seconds."""

    def __post_init__(self) -> None:
        _expect_fields("scaling costs", self.factors)
        expect("scaling costs", self.factors, **dict.fromkeys(self.factors, AMOUNT))

    def pieces(self, order: Order) -> list[Piece]:
        """The other source's pieces, with other seconds."""
        factor = self.factors.get(order.field, 1.0)
        return [piece.times(factor) for piece in self.costs.pieces(order)]


def _expect_fields(doing: str, named: Mapping[str, object]) -> None:
    if unknown := sorted(named.keys() - set(FIELDS)):
        raise ValueError(f"{doing}: no phase writes {', '.join(unknown)}; give seconds for any of {', '.join(FIELDS)}")


def total_s(pieces: Sequence[Piece]) -> float:
    """Seconds of all pieces, one after another.

    >>> total_s([Piece("a", 1.0), Piece("b", 0.5)])
    1.5
    """
    return sum(piece.seconds for piece in pieces)

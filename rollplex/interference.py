"""What co-running costs: decode gets slower, and the compute beside it gets longer.

Two effects are told apart. A *rate*, while the two run at the same time (shared bandwidth, shared multiprocessors), and a
*delay*, once a rollout or once a suffix (contexts, partitions that hold for the whole process). The paper's Eq. 1 knows
the first delay only. This file knows no schedule; the simulator asks it who slows whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollplex.bounds import COUNT, FINITE, ONE_OR_MORE, expect
from rollplex.costs.costs import Kind


@dataclass(frozen=True, kw_only=True)
class Interference:
    """How two lanes of one pool slow each other; a factor below 1 would be a speedup, and is refused.

    >>> Interference(decode_slowdown=1.2, compute_stretch=1.5).slowdowns(["decode", "compute"])
    [1.2, 1.5]
    """

    name: str = "none"
    """What it is called in tables."""
    decode_slowdown: float = 1.0
    """Factor on decode's time while compute runs beside it."""
    compute_stretch: float = 1.0
    """Factor on the compute's time while decode runs beside it."""
    decode_delay_s: float = 0.0
    """Added to a rollout that shares its devices, once."""
    suffix_delay_s: float = 0.0
    """Added to a step's suffix where the policy that divides the device stays in force after the rollout."""
    processors: int | None = None
    """Where all lanes share so many processors of one kind, as on a CPU: more running pieces than that share them."""
    source: str = "an assumption"
    """Where the numbers come from."""

    def __post_init__(self) -> None:
        doing = f"making the Interference {self.name!r}"
        expect(doing, vars(self), decode_slowdown=ONE_OR_MORE, compute_stretch=ONE_OR_MORE)
        # Delays may be below zero: fitted to published times, some are, by as much as those times are noise.
        expect(doing, vars(self), decode_delay_s=FINITE, suffix_delay_s=FINITE)
        if self.processors is not None:
            expect(doing, vars(self), processors=COUNT)

    def slowdowns(self, running: Sequence[Kind]) -> list[float]:
        """Factor on the time of each piece that runs on one pool now."""
        if self.processors is not None:
            return [max(1.0, len(running) / self.processors)] * len(running)
        decoding = sum(kind == "decode" for kind in running)
        computing = sum(kind == "compute" for kind in running)
        factors: list[float] = []
        for kind in running:
            if kind == "decode" and computing:
                factors.append(self.decode_slowdown)
            elif kind == "compute" and decoding:
                factors.append(self.compute_stretch)
            else:
                factors.append(1.0)
        return factors

    @classmethod
    def eq1(cls, decode_delay_s: float = 0.0) -> Interference:
        """The paper's Eq. 1: ``T = max(T_D + dD, T_P) + T_post``, with dD a constant and the prefix as fast as alone."""
        return cls(name="Eq. 1", decode_delay_s=decode_delay_s, source="the paper's timing model")

    @classmethod
    def time_slicing(cls) -> Interference:
        """No sharing at all: two lanes take turns, so that each runs at half speed and nothing is gained."""
        return cls(name="time slicing", decode_slowdown=2.0, compute_stretch=2.0, source="by definition")


ONE_PROCESSOR = Interference(name="one processor", processors=1, source="by definition")
"""Lanes that take turns on one host thread: the `interleave` executor on a CPU."""
NONE = Interference(source="by definition")
"""Lanes that do not feel each other."""

H800_32B = Interference(
    name="MPS default, 32B on H800",
    decode_slowdown=1.02,
    compute_stretch=1.7,
    source="stretch: 1.5-1.9, derived from the paper's STAR anecdote (25 s less rollout, 7 s less step), not measured "
    "by anyone; decode slowdown: about 2 %, the median of Table 2's MPS rows (7B on H20)",
)
"""What we assume for a 32B model under MPS."""


def eq1_step_s(decode_s: float, prefix_s: float, post_s: float, decode_delay_s: float = 0.0) -> float:
    """The paper's Eq. 1, as arithmetic.

    >>> eq1_step_s(15.0, 7.0, 22.5, 1.7)
    39.2
    """
    return max(decode_s + decode_delay_s, prefix_s) + post_s

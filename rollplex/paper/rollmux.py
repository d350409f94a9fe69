"""RollMux's case: jobs that take turns on a rollout pool and a training pool, against a pair of pools for each job.

Cost efficiency is work for money: steps a second over what the devices cost a second, as its paper compares them. Here two
equal jobs share one pair of pools; disaggregation gives each its own pair. Per job the money halves, so the ratio is
``2 T_alone / T_shared``, whatever the prices of the two kinds of device; prices enter only against colocation, which
needs the training devices alone. The published 1.84x is an average over its production trace; it is not fitted here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rollplex.costs.costs import Given, Order, Piece
from rollplex.costs.workload import Workload
from rollplex.scenario import layout
from rollplex.schedules_pools import Disaggregated, Multiplexed
from rollplex.simulate import Job, simulate

PUBLISHED = 1.84
"""RollMux's cost efficiency over disaggregation, on 328 H20 + 328 H800 (arXiv 2512.11306)."""
CYCLE_S = 100.0
"""Rollout and training together, on devices of their own; only ratios matter."""

UNIT = 1000
"""Drawn length that stands for the mean rollout."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One condition."""

    rollout_share: float
    """Rollout's share of a job's step on pools of its own."""
    switch_share: float
    """Time to change jobs on a pool, as a share of that step."""
    spread: float
    """Standard deviation of the logarithm of a step's rollout time."""
    ratio: float
    """Simulated cost efficiency over disaggregation."""
    kind: Literal["simulated"] = "simulated"
    """What the ratio is."""


def efficiency(
    rollout_share: float, *, switch_share: float = 0.0, spread: float = 0.0, num_steps: int = 24, num_jobs: int = 2
) -> float:
    """Simulated cost efficiency of jobs that share two pools, over two pools for each.

    >>> round(efficiency(0.5), 1)
    2.0
    """
    jobs = [_job(Multiplexed(), f"job {i}", rollout_share, spread, num_steps, seed=i) for i in range(num_jobs)]
    pools = {"rollout": 1, "train": 1, "link": 1}
    shared = simulate(*jobs, pools=pools, switch_s=switch_share * CYCLE_S)
    alone = [
        simulate(_job(Disaggregated(), "alone", rollout_share, spread, num_steps, seed=i), pools=pools).end_s
        for i in range(num_jobs)
    ]
    # Money per job: alone, each pays for its pools while it runs; shared, all pay together for one pair.
    return sum(alone) / shared.end_s


def conditions() -> list[Point]:
    """How the ratio depends on balance, switching and variation."""
    made: list[Point] = []
    for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        for switch in (0.0, 0.02, 0.05):
            for spread in (0.0, 0.3):
                ratio = efficiency(share, switch_share=switch, spread=spread)
                made.append(Point(rollout_share=share, switch_share=switch, spread=spread, ratio=ratio))
    return made


@dataclass(frozen=True)
class _Varying:
    """Times by hand, a rollout's in proportion to the step's drawn length."""

    rollout_s: float
    train_s: float

    def pieces(self, order: Order) -> list[Piece]:
        """The rollout as long as the draw says."""
        factor = float(order.draw.responses[0, 0]) / UNIT
        return Given({"rollout": self.rollout_s * factor, "suffix": self.train_s}).pieces(order)


def _job(
    schedule: Multiplexed | Disaggregated, name: str, share: float, spread: float, num_steps: int, *, seed: int
) -> Job:
    # The median is set so that the mean of the drawn times is the given one, whatever the spread.
    median = UNIT * math.exp(-(spread**2) / 2)
    lengths = Workload(
        prompts=1, group=1, response_tokens=median, response_spread=spread, max_response_tokens=100 * UNIT
    )
    return Job(
        name=name,
        timetable=layout(schedule),
        costs=_Varying(share * CYCLE_S, (1 - share) * CYCLE_S),
        workload=lengths,
        num_steps=num_steps,
        seed=seed,
    )

"""Table 2 through the simulator: what a data set's own row fixes, and what other data sets' rows predict.

A data set is three times: rollout, prefixes, the rest. Its sequential row gives the first and the sum of the other two,
and **not** how that sum divides; the division is taken from its MPS-default row by Eq. 1. So of the 36 cells 4 are given
(sequential), 4 calibrate (MPS default), and 28 are predicted: the two delays of each policy are means over the other
data sets. `strict_error` shows what is left of the prediction if the division is guessed from the other data sets too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rollplex.costs.costs import Given
from rollplex.costs.workload import Workload
from rollplex.interference import NONE, Interference
from rollplex.paper.published import DATASETS, GENERATION_S, MPS, SEQUENTIAL, SPEEDUPS, STEP_S
from rollplex.schedule import Schedule
from rollplex.schedules import Rollplex, Serial
from rollplex.simulate import Job, simulate
from rollplex.standins import stand_ins

WORKLOAD = Workload(name="Table 2", prompts=32, group=8)
"""Its prompts and responses only cut the phases into pieces; the seconds are given."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A data set's three times, alone."""

    decode_s: float
    """Rollout."""
    prefix_s: float
    """Both prefixes."""
    post_s: float
    """Suffixes, backward passes, update."""

    @property
    def costs(self) -> Given:
        """As costs of phases; the halves of a pair are of no consequence."""
        half = self.prefix_s / 2
        seconds = {"rollout": self.decode_s, "reference_prefix": half, "policy_prefix": half, "suffix": self.post_s}
        return Given(seconds)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One step time of Table 2."""

    policy: str
    """Its row."""
    dataset: str
    """Its column."""
    published_s: float
    """The paper's."""
    predicted_s: float
    """Ours."""
    role: str
    """``given``, ``calibration`` or ``predicted``."""

    @property
    def error(self) -> float:
        """Relative, without sign."""
        return abs(self.predicted_s - self.published_s) / self.published_s


def split(column: int) -> Split:
    """A data set's times by Eq. 1 from its sequential and MPS-default rows.

    >>> round(split(0).prefix_s, 2)
    7.0
    """
    decode = GENERATION_S[SEQUENTIAL][column]
    delay = GENERATION_S[MPS][column] - decode
    prefix = STEP_S[SEQUENTIAL][column] - STEP_S[MPS][column] + delay
    return Split(decode_s=decode, prefix_s=prefix, post_s=STEP_S[SEQUENTIAL][column] - decode - prefix)


def fit(policy: str, columns: Sequence[int]) -> Interference:
    """A policy's two delays: means over some data sets of what it adds to the rollout and to the rest.

    Delays, because Table 2 fits no rate: a 70/30 thread cap adds 41-70 s to a rollout of 15 s and to one of 134 s alike.
    """
    splits = [split(column) for column in columns]
    rollouts = [GENERATION_S[policy][c] - s.decode_s for c, s in zip(columns, splits, strict=True)]
    rest = [STEP_S[policy][c] - GENERATION_S[policy][c] - s.post_s for c, s in zip(columns, splits, strict=True)]
    used = ", ".join(DATASETS[column] for column in columns)
    return Interference(
        name=policy,
        decode_delay_s=fmean(rollouts),
        suffix_delay_s=fmean(rest),
        source=f"fitted to Table 2 of the Rollplex paper ({used})",
    )


def cells() -> list[Cell]:
    """All 36 cells; the policies' delays come from the other three data sets each."""
    made: list[Cell] = []
    for column, dataset in enumerate(DATASETS):
        others = [other for other in range(len(DATASETS)) if other != column]
        for policy in STEP_S:
            if policy == SEQUENTIAL:
                role, seconds = "given", step_s(split(column), Serial(), NONE)
            else:
                role = "calibration" if policy == MPS else "predicted"
                seconds = step_s(split(column), Rollplex(), fit(policy, others))
            published = STEP_S[policy][column]
            made.append(Cell(policy=policy, dataset=dataset, published_s=published, predicted_s=seconds, role=role))
    return made


def step_s(times: Split, schedule: Schedule, interference: Interference) -> float:
    """Simulated seconds of a step."""
    job = Job(timetable=schedule.timetable(stand_ins()), costs=times.costs, workload=WORKLOAD)
    return simulate(job, interference=interference).step_s()


def winners(made: Sequence[Cell]) -> list[dict[str, object]]:
    """For each data set: the policy that is predicted to win, and how far it is from the one that did."""
    found: list[dict[str, object]] = []
    for dataset in DATASETS:
        mine = [cell for cell in made if cell.dataset == dataset and cell.policy != SEQUENTIAL]
        predicted = min(mine, key=lambda cell: cell.predicted_s)
        actual = min(mine, key=lambda cell: cell.published_s)
        excess = predicted.published_s / actual.published_s - 1
        found.append({"dataset": dataset, "predicted": predicted.policy, "published": actual.policy, "excess": excess})
    return found


def speedups() -> list[dict[str, object]]:
    """Sequential over MPS default: with each data set's own delay (so a check of the simulator), and predicted."""
    rows: list[dict[str, object]] = []
    for column, dataset in enumerate(DATASETS):
        others = [other for other in range(len(DATASETS)) if other != column]
        serial = step_s(split(column), Serial(), NONE)
        rows.append(
            {
                "dataset": dataset,
                "published": SPEEDUPS[column],
                "simulated": serial / step_s(split(column), Rollplex(), fit(MPS, [column])),
                "predicted_from_other_datasets": serial / step_s(split(column), Rollplex(), fit(MPS, others)),
            }
        )
    return rows


def strict_error() -> float:
    """Median error of the 32 overlapped cells if the prefix's share, too, is the mean of the other data sets'.

    What "from the sequential row alone" comes to: the share varies from 0.24 to 0.59, so the row does not tell it.
    """
    errors: list[float] = []
    shares = [split(c).prefix_s / (split(c).prefix_s + split(c).post_s) for c in range(len(DATASETS))]
    for column in range(len(DATASETS)):
        others = [other for other in range(len(DATASETS)) if other != column]
        own = split(column)
        rest = own.prefix_s + own.post_s
        prefix = rest * fmean(shares[other] for other in others)
        guessed = Split(decode_s=own.decode_s, prefix_s=prefix, post_s=rest - prefix)
        for policy in STEP_S:
            if policy != SEQUENTIAL:
                seconds = step_s(guessed, Rollplex(), fit(policy, others))
                errors.append(abs(seconds - STEP_S[policy][column]) / STEP_S[policy][column])
    return median(errors)


def median_error(made: Sequence[Cell], *roles: str) -> float:
    """Median error of the cells that play one of the roles; of all where none is named."""
    return median(cell.error for cell in made if not roles or cell.role in roles)

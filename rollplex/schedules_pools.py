"""Schedules over several pools, over overlapping steps, or over a selection of responses: for comparison, simulated only.

Each says in its timetable which pools it needs, how old weights may be, and what is trained on. `Timetable.check` refuses
to run them live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from rollplex.bounds import COUNT, NUMBER, expect
from rollplex.phases.phase import Phase
from rollplex.schedule import Schedule, ScheduleError, Slot, Stage, Timetable
from rollplex.schedules import HOST, ROLLOUT, TRAIN, Kit, Rollplex
from rollplex.selection import AnySelection, Oversample, Partial, TailBatch

LINK = "link"
TWO_POOLS = {ROLLOUT: "rollout", TRAIN: "train", HOST: "train", LINK: "link"}
"""Lane -> pool where rollout and training have devices of their own."""


@final
@dataclass(frozen=True)
class Disaggregated:
    """A rollout pool and a training pool, one step at a time: the paper's second baseline.

    ``early_prefix`` runs the prefixes on the training pool while the rollout pool decodes: the paper's idea without
    sharing a device, so nothing interferes.
    """

    early_prefix: bool = False
    """Whether prefixes run during the rollout."""

    @property
    def name(self) -> str:
        """``Disaggregated``, or ``DisaggregatedEarly``."""
        return "DisaggregatedEarly" if self.early_prefix else "Disaggregated"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """Decode on one pool; prefixes, suffix and update on the other; then the weights are sent."""
        kit = Kit(self.name, phases)
        decode, prefixes = kit.slot("rollout", ROLLOUT), _prefixes(kit)
        stages = (
            Stage(name="rollout", slots=(decode, *(prefixes if self.early_prefix else ()))),
            Stage(
                name="train", slots=(kit.slot("rewards", TRAIN), *(() if self.early_prefix else prefixes), *_post(kit))
            ),
            _published(kit),
        )
        return Timetable(name=self.name, stages=stages, pools=TWO_POOLS)


@final
@dataclass(frozen=True)
class BoundedStaleness:
    """Both pools work all the time: responses may come from weights up to ``staleness`` updates old."""

    staleness: int = 1
    """Updates that the sampling weights may be behind; at least 1."""
    early_prefix: bool = False
    """Whether the prefixes of a batch run before its responses are there, as long as the actor's weights are current."""

    def __post_init__(self) -> None:
        expect("making BoundedStaleness (0 is Disaggregated)", {"staleness": self.staleness}, staleness=COUNT)

    @property
    def name(self) -> str:
        """``OneStepOff``, or ``BoundedStaleness(n)``."""
        return "OneStepOff" if self.staleness == 1 else f"BoundedStaleness({self.staleness})"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """The two halves of a step, each on its own pool and of its own step."""
        kit = Kit(self.name, phases)
        prefixes = _prefixes(kit)
        stages = (
            Stage(name="rollout", slots=(kit.slot("rollout", ROLLOUT), *(prefixes if self.early_prefix else ()))),
            Stage(
                name="train", slots=(kit.slot("rewards", TRAIN), *(() if self.early_prefix else prefixes), *_post(kit))
            ),
            _published(kit),
        )
        return Timetable(name=self.name, stages=stages, pools=TWO_POOLS, staleness=self.staleness, pipelined=True)


@final
@dataclass(frozen=True)
class OneStepOff:
    """Train on the last rollout while the next one is decoded: `BoundedStaleness` by one update."""

    @property
    def name(self) -> str:
        """``OneStepOff``."""
        return "OneStepOff"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """As `BoundedStaleness` with ``staleness=1``."""
        return BoundedStaleness(1).timetable(phases)


@final
@dataclass(frozen=True)
class Streaming:
    """Two pools, and groups pass from one to the other as they complete; one update at the end, still on-policy."""

    staleness: int = 0
    """Updates that the sampling weights may be behind; with 0 the next rollout waits for the update."""

    def __post_init__(self) -> None:
        expect("making Streaming", {"staleness": self.staleness}, staleness=NUMBER)

    @property
    def name(self) -> str:
        """``Streaming``, or ``Streaming(n)``."""
        return f"Streaming({self.staleness})" if self.staleness else "Streaming"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """Decode on one pool; rewards, prefixes and suffixes of complete groups on the other."""
        kit = Kit(self.name, phases)
        window = (
            kit.slot("rollout", ROLLOUT),
            *_prefixes(kit),
            kit.slot("rewards", HOST, streams=["rollout"]),
            kit.slot("suffix", TRAIN, streams=["rollout", "rewards"]),
        )
        stages = (
            Stage(name="stream", slots=window),
            Stage(name="update", slots=(kit.slot("update", TRAIN),)),
            _published(kit),
        )
        return Timetable(
            name=self.name,
            stages=stages,
            pools=TWO_POOLS,
            staleness=self.staleness,
            pipelined=self.staleness > 0,
        )


@final
@dataclass(frozen=True)
class Multiplexed:
    """Several jobs take turns on one rollout pool and one training pool, their state warm in host memory (RollMux).

    Each job's own timetable is `Disaggregated`'s: on-policy and synchronous. Give the simulator several jobs.
    """

    @property
    def name(self) -> str:
        """``Multiplexed``."""
        return "Multiplexed"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """One job's timetable."""
        return replace(Disaggregated().timetable(phases), name=self.name)


@final
@dataclass(frozen=True)
class Selecting:
    """Another schedule over a selection of responses: partial rollout, oversampling or tail batching on top of it."""

    inner: Schedule = field(default_factory=Rollplex)
    """The schedule underneath."""
    selection: AnySelection = field(default_factory=Partial)
    """What is decoded and trained on."""

    def __post_init__(self) -> None:
        if isinstance(self.inner, Selecting | str | type):
            raise ScheduleError(
                f"making a Selecting over {self.inner!r}: it takes an object of a schedule that selects nothing itself, as "
                "Rollplex() is"
            )

    @property
    def name(self) -> str:
        """``Rollplex+Partial`` and so on."""
        return f"{self.inner.name}+{self.selection.name}"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """The other schedule's timetable, with the selection in it."""
        return replace(self.inner.timetable(phases), name=self.name, selection=self.selection)


def partial_rollout(inner: Schedule, over: float = 1.25) -> Selecting:
    """Partial rollout on top of a schedule.

    >>> partial_rollout(Rollplex()).name
    'Rollplex+Partial'
    """
    return Selecting(inner, Partial(over))


def oversampling(inner: Schedule, over: float = 1.25) -> Selecting:
    """Oversampling on top of a schedule."""
    return Selecting(inner, Oversample(over))


def tail_batching(inner: Schedule, over: float = 1.25) -> Selecting:
    """Tail batching on top of a schedule."""
    return Selecting(inner, TailBatch(over))


def _prefixes(kit: Kit) -> tuple[Slot, ...]:
    return (*kit.reference(TRAIN), kit.slot("policy_prefix", TRAIN))


def _post(kit: Kit) -> tuple[Slot, ...]:
    return (kit.slot("suffix", TRAIN), kit.slot("update", TRAIN))


def _published(kit: Kit) -> Stage:
    if "published" not in kit.phases:
        raise ScheduleError(
            f"laying out {kit.schedule}: no phase writes 'published'; the phases write {list(kit.phases)}. Where "
            "rollout has a pool of its own, a phase must send it the new weights."
        )
    return Stage(name="publish", slots=(kit.slot("published", LINK),))

"""The schedules that keep the synchronous update: the same phases, laid out differently in time.

Every one shares the prompt prefix over its group, the baseline too, so what differs is only *when* work runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rollplex.phases.phase import Phase
from rollplex.schedule import ScheduleError, Slot, Stage, Timetable

ROLLOUT, TRAIN, HOST = "rollout", "train", "host"


class Kit:
    """The user's phases by the field they write, so that a schedule can ask for them by name."""

    def __init__(self, schedule: str, phases: Sequence[Phase]) -> None:
        self.schedule = schedule
        self.phases = {phase.writes: phase for phase in phases}
        if len(self.phases) < len(phases):
            writes = [phase.writes for phase in phases]
            raise ScheduleError(f"laying out {schedule}: two phases write the same field; the phases write {writes}")
        for field in ("policy_prefix", "rollout", "rewards", "suffix", "update"):
            if field not in self.phases:
                raise ScheduleError(
                    f"laying out {schedule}: no phase writes {field!r}; the phases write {list(self.phases)}. "
                    "A step needs Prefix(policy), Decode, Reward, Suffix and Update."
                )

    def slot(self, field: str, lane: str, *, also: Sequence[str] = (), streams: Sequence[str] = ()) -> Slot:
        """The phase that writes ``field``, given what it requires, ``also``, and the reference's prefix if it exists."""
        phase = self.phases[field]
        known = phase.inputs()
        takes = [name for name, required in known.items() if required or name in also]
        if "reference_prefix" in known and "reference_prefix" in self.phases and "reference_prefix" not in takes:
            takes.append("reference_prefix")
        return Slot(phase=phase, lane=lane, takes=tuple(takes), streams=tuple(streams))

    def reference(self, lane: str) -> list[Slot]:
        """The reference's prefix, where there is a reference."""
        return [self.slot("reference_prefix", lane)] if "reference_prefix" in self.phases else []


@final
@dataclass(frozen=True)
class Serial:
    """One phase after another on one pool: the paper's colocated baseline."""

    @property
    def name(self) -> str:
        """``Serial``."""
        return "Serial"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """Decode, reward, both prefixes, suffix, update, with a barrier after each."""
        kit = Kit(self.name, phases)
        slots = [
            kit.slot("rollout", TRAIN),
            kit.slot("rewards", TRAIN),
            *kit.reference(TRAIN),
            kit.slot("policy_prefix", TRAIN),
            kit.slot("suffix", TRAIN),
            kit.slot("update", TRAIN),
        ]
        return Timetable(name=self.name, stages=tuple(Stage(name=s.phase.name, slots=(s,)) for s in slots))


@final
@dataclass(frozen=True)
class Rollplex:
    """The paper's schedule: both prefixes in the decode window, barriers before the suffix and before the update."""

    @property
    def name(self) -> str:
        """``Rollplex``."""
        return "Rollplex"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """P1 decode beside prefixes (and rewards as groups finish), P2 suffix, P3 update."""
        kit = Kit(self.name, phases)
        window = (
            kit.slot("rollout", ROLLOUT),
            *kit.reference(TRAIN),
            kit.slot("policy_prefix", TRAIN),
            kit.slot("rewards", HOST, streams=["rollout"]),
        )
        return Timetable(name=self.name, stages=(Stage(name="P1", slots=window), *_tail(kit)))


@final
@dataclass(frozen=True)
class OnePrefill:
    """The actor's prefix is the rollout's prefill: same weights, same prompt, so decode starts from its boundary."""

    @property
    def name(self) -> str:
        """``OnePrefill``."""
        return "OnePrefill"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """P0 actor prefix, P1 decode from its boundary beside the reference prefix, P2 suffix, P3 update."""
        kit = Kit(self.name, phases)
        window = (
            kit.slot("rollout", ROLLOUT, also=["policy_prefix"]),
            *kit.reference(TRAIN),
            kit.slot("rewards", HOST, streams=["rollout"]),
        )
        first = Stage(name="P0", slots=(kit.slot("policy_prefix", TRAIN),))
        return Timetable(name=self.name, stages=(first, Stage(name="P1", slots=window), *_tail(kit)))


@final
@dataclass(frozen=True)
class Streamed:
    """Suffix forward and backward of complete groups while other groups still decode; one update at the end.

    The weights do not change before the update, so it stays on-policy. ``handoff`` starts decode from the actor's
    boundary, as `OnePrefill` does.
    """

    handoff: bool = False
    """Whether decode starts from the actor's boundary."""

    @property
    def name(self) -> str:
        """``Streamed``."""
        return "Streamed"

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """P1 decode beside prefixes, rewards and suffixes of finished groups; P3 update."""
        kit = Kit(self.name, phases)
        decode = kit.slot("rollout", ROLLOUT, also=["policy_prefix"] if self.handoff else [])
        prefix = kit.slot("policy_prefix", TRAIN)
        window = (
            decode,
            *kit.reference(TRAIN),
            *(() if self.handoff else (prefix,)),
            kit.slot("rewards", HOST, streams=["rollout"]),
            kit.slot("suffix", TRAIN, streams=["rollout", "rewards"]),
        )
        before = (Stage(name="P0", slots=(prefix,)),) if self.handoff else ()
        last = Stage(name="P3", slots=(kit.slot("update", TRAIN),))
        return Timetable(name=self.name, stages=(*before, Stage(name="P1", slots=window), last))


def _tail(kit: Kit) -> tuple[Stage, ...]:
    return (
        Stage(name="P2", slots=(kit.slot("suffix", TRAIN),)),
        Stage(name="P3", slots=(kit.slot("update", TRAIN),)),
    )

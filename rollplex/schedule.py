"""Schedules as data: a timetable of phases that can be printed, checked, simulated and run.

A timetable is a sequence of stages with a barrier between them. A stage holds slots; slots on one lane run in order,
lanes of one stage run at the same time. This file knows what a timetable may contain. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import Protocol

from rollplex.phases.phase import Phase
from rollplex.resource import Resource

ONE_POOL = "all"
"""The pool of a timetable that names none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One phase on one lane."""

    phase: Phase
    """What runs."""
    lane: str
    """Where: slots of one lane take turns, lanes run at the same time."""
    takes: tuple[str, ...]
    """The `Step` fields handed to it; all that it requires, and those optional ones that the schedule wants used."""
    streams: tuple[str, ...] = ()
    """Those of ``takes`` that are read while they are still being made, part by part."""
    share: float = 1.0
    """Turns of this lane for each turn of a lane with share 1, where one host thread serves all lanes."""

    def __repr__(self) -> str:
        streamed = f" (streaming {', '.join(self.streams)})" if self.streams else ""
        return f"{self.phase.name}{streamed}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """Slots between two barriers."""

    name: str
    """Name in traces, e.g. ``"P1"``."""
    slots: tuple[Slot, ...]
    """In the order in which each lane runs them."""

    def lanes(self) -> dict[str, list[Slot]]:
        """Lane -> its slots in order."""
        lanes: dict[str, list[Slot]] = {}
        for slot in self.slots:
            lanes.setdefault(slot.lane, []).append(slot)
        return lanes


@dataclass(frozen=True, kw_only=True, eq=False)
class Timetable:
    """A whole step as a schedule wants it."""

    name: str
    """Name of the schedule."""
    stages: tuple[Stage, ...]
    """In order, with a barrier after each."""
    pools: Mapping[str, str] = field(default_factory=dict)
    """Lane -> the pool of devices that it runs on; a lane that is not named runs on the pool ``"all"``."""
    staleness: int = 0
    """How many updates the weights that sample may be behind those that are trained; 0 is on-policy."""
    pipelined: bool = False
    """Whether a step may begin before the one before it has ended, as far as lanes and staleness allow."""
    selection: Selection | None = None
    """What a rollout decodes and which responses are trained on, where that is not simply all of them."""

    def pool(self, lane: str) -> str:
        """The pool that a lane runs on."""
        return self.pools.get(lane, ONE_POOL)

    @property
    def on_policy(self) -> bool:
        """Whether every trained token was sampled from the weights that are trained."""
        return self.staleness == 0 and (self.selection is None or self.selection.on_policy)

    @property
    def synchronous(self) -> bool:
        """Whether a step's update ends before the next step's rollout begins."""
        return self.staleness == 0 and not self.pipelined

    def check(self, *, live: bool = True) -> None:
        """Refuse a timetable that could compute something else than the serial step.

        Every input is written earlier (or streamed from the same stage), every field is written once, and within a
        stage a resource has many readers or one writer on another lane: resources are compared by storage. Where steps
        overlap, the last rule holds for all slots of different lanes. ``live`` also refuses what only a simulator runs.
        """
        if live:
            _check_live(self)
        if self.pipelined:
            _check_borrows(self.name, Stage(name="all", slots=tuple(slot for s in self.stages for slot in s.slots)))
        written = {"prompts"}
        for stage in self.stages:
            _check_inputs(self.name, stage, written)
            _check_turns(self.name, stage)
            _check_borrows(self.name, stage)
            written |= {slot.phase.writes for slot in stage.slots}

    def __repr__(self) -> str:
        rows = [
            ("" if place else stage.name, lane, ", ".join(map(repr, slots)))
            for stage in self.stages
            for place, (lane, slots) in enumerate(stage.lanes().items())
        ]
        stages, lanes = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
        lines = [f"  {stage:{stages}}  {lane:{lanes}}  {slots}" for stage, lane, slots in rows]
        return "\n".join([f"{self.name}:", *lines])


class Selection(Protocol):
    """Which responses a rollout decodes and which of them are trained on (see `rollplex.selection`)."""

    @property
    def name(self) -> str:
        """Its class name, as in tables and figures."""
        ...

    @property
    def on_policy(self) -> bool:
        """Whether what is trained on was sampled from the weights that are trained."""
        ...

    @property
    def period(self) -> int:
        """Steps over which its lengths repeat: averages must span whole ones."""
        ...


class Schedule(Protocol):
    """Makes a timetable of the phases that a user gave."""

    @property
    def name(self) -> str:
        """Its class name, as in tables and figures."""
        ...

    def timetable(self, phases: Sequence[Phase]) -> Timetable:
        """The phases, laid out in time."""
        ...


class ScheduleError(ValueError):
    """A timetable breaks a rule that keeps the update the same as the serial one."""


def _check_live(table: Timetable) -> None:
    needs: list[str] = []
    if len(set(map(table.pool, (lane for stage in table.stages for lane in stage.lanes())))) > 1:
        needs.append(f"pools of devices ({', '.join(sorted(set(table.pools.values())))})")
    if table.pipelined or table.staleness:
        needs.append(f"steps that overlap (weights up to {table.staleness} updates old)")
    if table.selection is not None:
        needs.append(f"responses that are left out or carried over ({table.selection.name})")
    if needs:
        raise ScheduleError(
            f"running {table.name}: a live run has one pool and one step at a time, and this timetable needs "
            f"{' and '.join(needs)}. Simulate it: rollplex.simulate."
        )


def _check_inputs(name: str, stage: Stage, written: set[str]) -> None:
    inside = {slot.phase.writes: slot for slot in stage.slots}
    if len(inside) < len(stage.slots) or not written.isdisjoint(inside):
        fields = [slot.phase.writes for slot in stage.slots]
        raise ScheduleError(f"checking {name}, stage {stage.name}: a field is written twice; its slots write {fields}")
    for position, slot in enumerate(stage.slots):
        known = slot.phase.inputs()
        missing = [field for field, required in known.items() if required and field not in slot.takes]
        unknown = [field for field in slot.takes if field not in known]
        if missing or unknown:
            raise ScheduleError(
                f"checking {name}, stage {stage.name}: {slot.phase.name} lacks {missing} and is given {unknown}, "
                f"but it takes {list(known)}"
            )
        for taken in slot.takes:
            if taken in written:
                continue
            maker = inside.get(taken)
            earlier = maker is not None and maker.lane == slot.lane and maker in stage.slots[:position]
            if not earlier and not (maker is not None and taken in slot.streams):
                raise ScheduleError(
                    f"checking {name}, stage {stage.name}: {slot.phase.name} reads {taken!r}, which is not written "
                    "before it. Put its phase into an earlier stage, earlier on the same lane, or stream it."
                )


def _check_turns(name: str, stage: Stage) -> None:
    """Every slot gets turns, and none waits, through streams and places on lanes, for one that waits for it."""
    if bad := [slot for slot in stage.slots if not 0 < slot.share < float("inf")]:
        raise ScheduleError(f"checking {name}, stage {stage.name}: {bad[0]} has share {bad[0].share}; use one above 0")
    makers = {slot.phase.writes: slot for slot in stage.slots}
    waits: dict[Slot, list[Slot]] = {}
    for slots in stage.lanes().values():
        for before, slot in zip([None, *slots], slots, strict=False):
            streamed = [makers[field] for field in slot.streams if field in makers]
            waits[slot] = streamed if before is None else [*streamed, before]
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        cycle = ", ".join(map(repr, error.args[1]))
        raise ScheduleError(
            f"checking {name}, stage {stage.name}: slots wait for each other: {cycle}. Put the phase that makes a "
            "streamed field before its reader on the same lane, or on another lane."
        ) from None


def _check_borrows(name: str, stage: Stage) -> None:
    for (lane, slots), (other_lane, others) in combinations(stage.lanes().items(), 2):
        for slot in slots:
            for other in others:
                for writer, user in ((slot, other), (other, slot)):
                    clash = _clash(writer.phase.mutates, (*user.phase.reads, *user.phase.mutates))
                    if clash:
                        raise ScheduleError(
                            f"checking {name}, stage {stage.name}: {writer.phase.name} changes {clash[0]} while "
                            f"{user.phase.name} uses {clash[1]} (lanes {lane!r} and {other_lane!r}), and they share "
                            "storage. A resource has many readers or one writer: put a barrier between them."
                        )


def _clash(written: Sequence[Resource], used: Sequence[Resource]) -> tuple[str, str] | None:
    for writer in written:
        for user in used:
            if writer.overlaps(user):
                return writer.name, user.name
    return None

"""Jobs by hand for tests of the simulator: small enough to compute on paper."""

from __future__ import annotations

from rollplex.costs.costs import Given
from rollplex.costs.workload import Workload
from rollplex.schedule import Schedule, Slot, Timetable
from rollplex.simulate import Job
from rollplex.standins import stand_ins

SMALL = Workload(prompts=4, group=2, response_tokens=10, response_spread=0)
SECONDS = {"rollout": 8.0, "reference_prefix": 1.0, "policy_prefix": 2.0, "suffix": 4.0, "update": 1.0}
POOLS = {"all": 1, "rollout": 1, "train": 1, "link": 1}


def job(schedule: Schedule, seconds: dict[str, float] | None = None, *, name: str = "job", steps: int = 1) -> Job:
    """Stand-ins under a schedule, at seconds by hand."""
    timetable = layout(schedule)
    return Job(timetable=timetable, costs=Given(seconds or SECONDS), workload=SMALL, name=name, num_steps=steps)


def layout(schedule: Schedule) -> Timetable:
    """A schedule over stand-ins; with a publish phase where the schedule wants one."""
    return schedule.timetable(stand_ins(engine_copy=needs_copy(schedule)))


def needs_copy(schedule: Schedule) -> bool:
    """Whether the schedule gives rollout a pool of its own."""
    return "link" in set(schedule.timetable(stand_ins(engine_copy=True)).pools)


def slots(timetable: Timetable) -> list[Slot]:
    """Every slot."""
    return [slot for stage in timetable.stages for slot in stage.slots]

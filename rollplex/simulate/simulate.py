"""Simulating jobs: from timetables and costs to predicted traces, idle shares and memory peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollplex.bounds import AMOUNT, COUNT, expect
from rollplex.costs.costs import Order, Piece
from rollplex.costs.workload import Draw
from rollplex.interference import NONE, Interference
from rollplex.schedule import ONE_POOL
from rollplex.simulate.clock import Clock
from rollplex.simulate.held import Occupancy
from rollplex.simulate.job import Job
from rollplex.simulate.work import Work, works_of
from rollplex.trace import MemorySample, Tick, Trace


@dataclass(eq=False)
class Simulation:
    """What would happen."""

    traces: dict[str, Trace] = field(default_factory=dict)
    """Job -> its predicted trace; all on one clock."""
    devices: dict[str, int] = field(default_factory=dict)
    """Pool -> its devices."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """Pool -> seconds of work, as if all its devices had shared it evenly."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """Pool -> most bytes held by one of its devices."""
    peak_owners: dict[str, dict[str, int]] = field(default_factory=dict)
    """Pool -> who held them at that moment."""
    end_s: float = 0.0
    """When the last piece ended."""
    ends: dict[str, list[float]] = field(default_factory=dict)
    """Job -> when each of its steps ended."""

    @property
    def trace(self) -> Trace:
        """The only job's trace."""
        if len(self.traces) != 1:
            raise ValueError(
                f"asking for the trace: there are {len(self.traces)} jobs, {list(self.traces)}; use .traces"
            )
        return next(iter(self.traces.values()))

    def step_s(self, job: str | None = None, *, skip: int = 0) -> float:
        """Seconds from one step's end to the next, on average, the first ``skip`` steps left out."""
        name = next(iter(self.ends)) if job is None else job
        if name not in self.ends:
            raise ValueError(f"asking for the step time of job {name!r}: the jobs are {', '.join(self.ends)}")
        ends = self.ends[name]
        if not 0 <= skip < len(ends):
            raise ValueError(
                f"asking for the step time after {skip} steps: {len(ends)} were simulated; skip fewer, or simulate more"
            )
        begin = ends[skip - 1] if skip else 0.0
        return (ends[-1] - begin) / (len(ends) - skip)

    @property
    def idle_share(self) -> float:
        """Device-seconds in which nothing ran, over all device-seconds."""
        total = sum(self.devices.values()) * self.end_s
        return 1 - sum(self.busy_s[pool] * num for pool, num in self.devices.items()) / total if total else 0.0

    def __repr__(self) -> str:
        jobs = "1 job" if len(self.traces) == 1 else f"{len(self.traces)} jobs"
        return f"Simulation(predicted: {jobs} on {self.devices}, {self.end_s:.4g} s, idle {self.idle_share:.0%})"


def simulate(
    *jobs: Job,
    pools: Mapping[str, int] | None = None,
    interference: Interference = NONE,
    switch_s: float = 0.0,
    device: str = "simulated",
) -> Simulation:
    """Run jobs on a virtual clock; deterministic.

    ``pools`` is the number of devices of each pool. Jobs that name the same pool share its lanes, first come first served;
    ``switch_s`` is what a lane needs to change jobs.

    >>> from rollplex.costs.costs import Given
    >>> from rollplex.costs.workload import Workload
    >>> from rollplex.schedules import Rollplex
    >>> from rollplex.standins import stand_ins
    >>> costs = Given({"rollout": 8.0, "policy_prefix": 2.0, "reference_prefix": 1.0, "suffix": 3.0, "update": 1.0})
    >>> job = Job(timetable=Rollplex().timetable(stand_ins()), costs=costs, workload=Workload())
    >>> round(simulate(job).step_s(), 6)
    12.0
    """
    sizes = dict(pools) if pools is not None else {ONE_POOL: 1}
    _check(jobs, sizes)
    expect("simulating", {"switch_s": switch_s}, switch_s=AMOUNT)
    if not isinstance(interference, Interference):
        raise ValueError(f"simulating: interference is {interference!r}; give an Interference, as rx.Interference() is")
    recording = _Recording(jobs, sizes, device)
    clock = Clock(
        works=[work for job in jobs for work in works_of(job)],
        devices=sizes,
        interference=interference,
        switch_s=switch_s,
        order=recording.order,
        on_start=recording.start,
        on_piece=recording.piece,
        on_finish=recording.finish,
    )
    clock.run()
    result = recording.result
    result.end_s = clock.now
    # A link is not a device: what it carries is not work of the pools.
    used = {work.pool for work in clock.works} - {"link"}
    result.devices = {pool: num for pool, num in sizes.items() if pool in used}
    result.busy_s = {pool: clock.busy[pool] for pool in result.devices}
    return result


def _check(jobs: Sequence[Job], sizes: Mapping[str, int]) -> None:
    if not jobs or not all(isinstance(job, Job) for job in jobs):
        raise ValueError(
            f"simulating: the jobs are {jobs}; give at least one Job, which names a timetable and its costs"
        )
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError(f"simulating: the jobs are named {[job.name for job in jobs]}; give each a name of its own")
    expect("simulating: devices of each pool", sizes, **dict.fromkeys(sizes, COUNT))
    for job in jobs:
        job.timetable.check(live=False)
        needed = {job.timetable.pool(slot.lane) for stage in job.timetable.stages for slot in stage.slots}
        needed |= {held.pool for held in job.held}
        if needed - sizes.keys():
            raise ValueError(
                f"simulating {job.timetable.name}: it needs pools {sorted(needed)}, and sizes were given for "
                f"{sorted(sizes)}. Pass pools={{name: devices}}."
            )


class _Recording:
    """Listens to the clock and writes the result."""

    def __init__(self, jobs: Sequence[Job], sizes: Mapping[str, int], device: str) -> None:
        self.sizes = sizes
        self.result = Simulation()
        self.draws: dict[str, list[Draw]] = {}
        self.occupancy: dict[str, Occupancy] = {}
        for job in jobs:
            trace = Trace(kind="predicted", device=device)
            trace.schedules.update(dict.fromkeys(range(job.num_steps), job.timetable.name))
            self.result.traces[job.name] = trace
            self.result.ends[job.name] = [0.0] * job.num_steps
            self.draws[job.name] = job.draws()
            self.occupancy[job.name] = Occupancy(job.held)

    def order(self, work: Work) -> Order:
        """What a work's costs are asked for."""
        draw = self.draws[work.job.name][work.step]
        if work.field in ("policy_prefix", "reference_prefix", "rewards") and (draw.group or _after_rollout(work)):
            draw = draw.trained_only
        return Order(
            field=work.field,
            draw=draw,
            devices=self.sizes[work.pool],
            handoff=work.field == "rollout" and "policy_prefix" in work.slot.takes,
            pool=work.pool,
            streamed=bool(work.slot.streams),
        )

    def start(self, work: Work, now: float) -> None:
        """A work starts."""
        if self.occupancy[work.job.name].started(work.field):
            self._sample(work, now)

    def piece(self, work: Work, piece: Piece, start: float, end: float) -> None:
        """A piece has run."""
        trace = self.result.traces[work.job.name]
        trace.ticks.append(Tick(work.step, work.label, work.slot.lane, work.slot.phase.name, piece.label, start, end))
        ends = self.result.ends[work.job.name]
        ends[work.step] = max(ends[work.step], end)
        if work.field == "rollout" and work.job.held:
            self.occupancy[work.job.name].cache(work.pool, piece.holds)
            self._sample(work, end)

    def finish(self, work: Work, now: float) -> None:
        """A work is done."""
        occupancy = self.occupancy[work.job.name]
        if work.field == "rollout" and work.job.held:
            occupancy.cache(work.pool, 0)
        if occupancy.finished(work.field):
            self._sample(work, now)

    def _sample(self, work: Work, now: float) -> None:
        """Note who holds what: one device's bytes, in the job's trace and in the peaks of the pools."""
        mine = self.occupancy[work.job.name].there
        several = len(mine) > 1
        owners = {
            f"{pool}: {owner}" if several else owner: int(num)
            for pool, held in mine.items()
            for owner, num in held.items()
            if num
        }
        self.result.traces[work.job.name].samples.append(MemorySample(work.step, now, owners))
        for pool in mine:
            total = int(sum(occupancy.total(pool) for occupancy in self.occupancy.values()))
            if total > self.result.peak_bytes.get(pool, 0):
                self.result.peak_bytes[pool] = total
                self.result.peak_owners[pool] = {
                    owner: int(num)
                    for occupancy in self.occupancy.values()
                    for owner, num in occupancy.there.get(pool, {}).items()
                    if num
                }


def _after_rollout(work: Work) -> bool:
    stages = work.job.timetable.stages[: work.stage_index]
    return any(slot.phase.writes == "rollout" for stage in stages for slot in stage.slots)

"""Planning: which schedule, tensor-parallel degrees and residency to use, before renting anything.

Candidates are bounded from below first (a lane never overlaps itself, so no step is shorter than its longest lane); those
that cannot beat the best ones are not simulated, and the table says so. Every time in it is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from rollplex.bounds import COUNT, ONE_OR_MORE, expect
from rollplex.candidate import Budget, Candidate, Plan
from rollplex.costs.costs import Order, total_s
from rollplex.costs.geometry import Geometry, geometry
from rollplex.costs.placement import Placement, PlacementError
from rollplex.costs.remembered import Remembered
from rollplex.costs.residency import MANAGED, NAIVE, Residency, host_bytes
from rollplex.costs.roofline import Efficiency
from rollplex.costs.workload import Draw, Workload
from rollplex.critical import bounding_s
from rollplex.hardware import Cluster
from rollplex.interference import H800_32B, Interference
from rollplex.presets.table import SCHEDULES, label
from rollplex.scenario import Scenario
from rollplex.schedule import Schedule, Timetable
from rollplex.simulate import Job, Simulation, simulate

DEGREES = (1, 2, 4, 8, 16)
"""Tensor-parallel degrees that are tried, up to twice the key/value heads."""
SHARES = (0.25, 0.5, 0.75)
"""Of the devices, for the rollout pool; the best balance is searched for besides."""
FILL = 3
"""Steps before the first that counts, where a pipeline has to fill or a backlog to level."""


def plan(
    model: str | Path | Geometry,
    cluster: Cluster,
    workload: Workload | None = None,
    *,
    budget: Budget | None = None,
    schedules: Sequence[Schedule] = SCHEDULES,
    residencies: Sequence[Residency] = (MANAGED, NAIVE),
    efficiency: Efficiency | None = None,
    interference: Interference = H800_32B,
    reference: bool = True,
    slack: float = 1.5,
    num_steps: int = 1,
) -> Plan:
    """Schedules x tensor-parallel degrees x residency policies on a cluster.

    ``reference`` is whether the loss needs a frozen model (beta above 0). A candidate whose lower bound is above ``slack``
    times the fastest that fits so far is listed, and not simulated; but one of each schedule is, if any fits.

    >>> from rollplex.hardware import cluster as nodes
    >>> from rollplex.schedules import Rollplex, Serial
    >>> made = plan("Qwen2.5-VL-7B", nodes("H800"), Workload(prompts=8), schedules=(Serial(), Rollplex()))
    >>> made.best.fits
    True
    """
    expect("planning", {"slack": slack, "num_steps": num_steps}, slack=ONE_OR_MORE, num_steps=COUNT)
    case = Scenario(
        geometry=geometry(model),
        cluster=cluster,
        workload=Workload() if workload is None else workload,
        efficiency=Efficiency() if efficiency is None else efficiency,
        interference=interference,
        reference=reference,
        num_steps=num_steps,
    )
    budget = Budget() if budget is None else budget
    _expect_parts(budget, schedules, residencies)
    search = _Search(case, budget, schedules)
    candidates = sorted(search.candidates(residencies), key=lambda c: c.lower_bound_s)
    done: list[Candidate] = []
    fastest: dict[str, float] = {}
    for candidate in candidates:
        bound, limit = candidate.lower_bound_s, slack * min(fastest.values(), default=float("inf"))
        if candidate.why_not:
            done.append(candidate)
        elif bound > limit and candidate.name in fastest:
            done.append(replace(candidate, why_not=f"not simulated: it takes at least {bound:.1f} s (slack={slack:g})"))
        else:
            made = search.simulated(candidate)
            if made.fits:
                fastest[made.name] = min(fastest.get(made.name, made.step_s), made.step_s)
            done.append(made)
    done.sort(key=lambda c: (not c.fits, float("inf") if isnan(c.step_s) else c.step_s, c.lower_bound_s))
    return Plan(tuple(done), _ground(case))


def _expect_parts(budget: object, schedules: object, residencies: object) -> None:
    """Refuse what is no budget, and what are no lists of schedules and residencies."""
    if not isinstance(budget, Budget):
        raise ValueError(f"planning: budget is {budget!r}; give a Budget, as rx.Budget(on_policy=True) is")
    if not isinstance(schedules, Sequence) or isinstance(schedules, str) or not schedules:
        raise ValueError(f"planning: schedules is {schedules!r}; give a list of at least one, as [rx.Serial()] is")
    if (
        not isinstance(residencies, Sequence)
        or not residencies
        or not all(isinstance(r, Residency) for r in residencies)
    ):
        raise ValueError(
            f"planning: residencies is {residencies!r}; give a list of at least one Residency, as rollplex.costs.residency.MANAGED is"
        )


def _ground(case: Scenario) -> str:
    work = case.workload
    return (
        f"{case.geometry.name} on {case.devices}, {work.prompts} prompts x {work.group} responses, median "
        f"{work.prompt_tokens:g} + {work.response_tokens:g} tokens; co-running: {case.interference.name}"
    )


def _named(schedules: Sequence[Schedule], tables: Sequence[Timetable]) -> dict[str, tuple[Schedule, Timetable]]:
    """Schedules and their timetables by name, and by their settings too where two share a name."""
    own = [label(schedule) for schedule in schedules]
    names = [repr(s) if own.count(name) > 1 else name for s, name in zip(schedules, own, strict=True)]
    if len(set(names)) < len(names):
        raise ValueError(f"planning: a schedule is given twice, found {names}; give each once")
    return dict(zip(names, zip(schedules, tables, strict=True), strict=True))


class _Search:
    """Makes candidates, and simulates them with costs and lengths that are computed once."""

    def __init__(self, case: Scenario, budget: Budget, schedules: Sequence[Schedule]) -> None:
        self.case = case
        self.budget = budget
        self.schedules = _named(schedules, [case.layout(schedule) for schedule in schedules])
        self.memory: dict[Any, Any] = {}
        self.draws: dict[Any, list[Draw]] = {}

    def candidates(self, residencies: Sequence[Residency]) -> Iterator[Candidate]:
        """Every combination; one that cannot be laid out says why."""
        most = min(self.case.cluster.num_devices, 2 * self.case.geometry.kv_heads)
        degrees = [tp for tp in DEGREES if tp <= most]
        for name, (schedule, table) in self.schedules.items():
            for train_tp in degrees:
                for rollout_tp in (tp for tp in degrees if tp <= train_tp):
                    for residency in residencies:
                        placed = residency.placement(Placement(train_tp=train_tp, rollout_tp=rollout_tp))
                        for share in self._shares(table, placed):
                            made = Candidate(
                                name=name,
                                schedule=schedule,
                                timetable=table,
                                placement=placed,
                                residency=residency,
                                rollout_share=share,
                            )
                            yield self._bounded(made)

    def _shares(self, table: Timetable, placed: Placement) -> tuple[float | None, ...]:
        """Shares of the devices for the rollout pool: a few, and the one at which the lanes take least.

        More devices speed one pool up and slow the other down. Steps that overlap take as long as the longest lane, the
        others as long as all lanes together; either has one valley over the share.
        """
        if not table.pools:
            return (None,)
        if not all(map(self.case.geometry.can_cut, (placed.train_tp, placed.rollout_tp))):
            return (0.5,)
        together = sum if table.synchronous else max
        draw = self._lengths(table)[0]

        def taken(share: float) -> float:
            try:
                return float(together(self._lanes(table, placed, self.case.sizes(table, placed, share), draw).values()))
            except PlacementError:  # a pool would be empty
                return float(np.finfo(float).max)

        found = minimize_scalar(taken, bounds=(0.0, 1.0), method="bounded", options={"xatol": 0.02})
        shares = (*SHARES, round(float(found.x), 2))
        # Pools are whole numbers of engines: shares that round to the same pools are the same candidate.
        pools = {round(share * self.case.cluster.num_devices / placed.unit): share for share in reversed(shares)}
        return tuple(sorted(pools.values()))

    def _bounded(self, made: Candidate) -> Candidate:
        """With its lower bound, or why it cannot be used."""
        if self.budget.on_policy and not made.timetable.on_policy:
            return replace(made, why_not="off-policy")
        staleness, most = made.timetable.staleness, self.budget.max_staleness
        if most is not None and staleness > most:
            return replace(made, why_not=f"weights may be {staleness} updates old, and the budget allows {most}")
        try:
            return replace(made, lower_bound_s=self._bound(made))
        except PlacementError as error:
            return replace(made, why_not=str(error))

    def _bound(self, made: Candidate) -> float:
        """The longest lane, in the least of the steps that count.

        Where steps overlap, a rollout may have run before them: only what is trained bounds them.
        """
        table, placed = made.timetable, made.placement
        sizes = self.case.sizes(table, placed, made.rollout_share or 0.5)
        _, skip = self.steps(table)
        lanes = [self._lanes(table, placed, sizes, draw) for draw in self._lengths(table)[skip:]]
        bounding = [lane for lane in lanes[0] if not table.pipelined or table.pool(lane) == table.pool("train")]
        return max(min(each[lane] for each in lanes) for lane in bounding)

    def _lanes(self, table: Timetable, placed: Placement, sizes: dict[str, int], draw: Draw) -> dict[str, float]:
        """Seconds of work of each lane in a step of these lengths."""
        costs = self._costs(placed)
        lanes: dict[str, float] = {}
        for stage in table.stages:
            for slot in stage.slots:
                pool = table.pool(slot.lane)
                rollout = slot.phase.writes == "rollout"
                order = Order(
                    field=slot.phase.writes,
                    draw=draw if rollout else draw.trained_only,
                    devices=sizes[pool],
                    pool=pool,
                    handoff=rollout and "policy_prefix" in slot.takes,
                )
                lanes[slot.lane] = lanes.get(slot.lane, 0.0) + total_s(costs.pieces(order))
        return lanes

    def _costs(self, placed: Placement) -> Remembered:
        return Remembered(self.case.costs(placed), placed, self.memory)

    def _lengths(self, table: Timetable) -> list[Draw]:
        """The lengths of each simulated step, the same objects each time: costs are remembered by them.

        Whatever has to fill before is left out of the count, so that schedules are compared on the same steps.
        """
        steps, skip = self.steps(table)
        num = steps - skip + FILL
        if table.selection not in self.draws:
            costs = self._costs(self.case.usual_placement())
            job = Job(timetable=table, costs=costs, workload=self.case.workload, num_steps=num)
            self.draws[table.selection] = job.draws()
        first = FILL if table.selection is None and not skip else 0
        return self.draws[table.selection][first : first + steps]

    def steps(self, table: Timetable) -> tuple[int, int]:
        """Steps to simulate, and the first of them to leave out: a pipeline must fill, a backlog must level."""
        period = 1 if table.selection is None else table.selection.period
        skip = FILL if period == 1 and (table.pipelined or table.selection is not None) else 0
        return self.case.num_steps * period + skip, skip

    def simulated(self, candidate: Candidate) -> Candidate:
        """The candidate with its figures."""
        table, placed = candidate.timetable, candidate.placement
        sizes = self.case.sizes(table, placed, candidate.rollout_share or 0.5)
        steps, skip = self.steps(table)
        job = Job(
            timetable=table,
            costs=self._costs(placed),
            workload=self._lengths(table),
            num_steps=steps,
            held=self.case.held(table, placed, candidate.residency, sizes),
        )
        made = simulate(job, pools=sizes, interference=self.case.interference, device=self.case.devices)
        return replace(
            candidate,
            step_s=made.step_s(skip=skip),
            idle_share=made.idle_share,
            peak_bytes=made.peak_bytes,
            work_s=made.trace.busy_s(steps - 1),
            bounds_s=bounding_s(made.trace, steps - 1),
            why_not=self._too_much(made) or self._too_much_host(candidate, sizes[table.pool("train")]),
            simulation=made,
        )

    def _too_much(self, made: Simulation) -> str:
        """What a device would need and has not; empty where it has."""
        limit = self.budget.memory_bytes or self.case.cluster.device.usable_bytes
        pool, num = max(made.peak_bytes.items(), key=lambda item: item[1])
        if num <= limit:
            return ""
        largest = sorted(made.peak_owners[pool].items(), key=lambda item: -item[1])[:3]
        owners = ", ".join(f"{owner} {size / 2**30:.1f}" for owner, size in largest)
        return f"needs {num / 2**30:.1f} GiB of {limit / 2**30:.3g} on pool {pool!r} ({owners})"

    def _too_much_host(self, candidate: Candidate, devices: int) -> str:
        """The same of a node's main memory, where state waits that is not on a device."""
        case, placed = self.case, candidate.placement
        each = host_bytes(candidate.residency, case.geometry, placed, devices=devices, reference=case.reference)
        need, there = each * min(devices, case.cluster.devices_per_node), case.cluster.host_bytes
        return f"needs {need / 2**30:.0f} GiB of {there / 2**30:.0f} in a node's main memory" if need > there else ""

"""Planning: which schedule, tensor-parallel degrees and residency to use, before renting anything.

Candidates are bounded from below first (no step is shorter than its decode, nor than its training work on the devices it
has); those that cannot beat the best ones are not simulated, and the table says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from rollplex.candidate import Budget, Candidate, Plan
from rollplex.costs.costs import Order, total_s
from rollplex.costs.geometry import Geometry, geometry
from rollplex.costs.remembered import Remembered
from rollplex.costs.residency import MANAGED, NAIVE, Residency, objects
from rollplex.costs.roofline import Efficiency, Placement, Roofline
from rollplex.costs.workload import Draw, Workload
from rollplex.critical import bound_by
from rollplex.hardware import Cluster
from rollplex.interference import H800_32B, Interference
from rollplex.presets.table import SCHEDULES, label
from rollplex.scenario import Scenario, layout
from rollplex.schedule import Schedule, Timetable
from rollplex.simulate import Job, simulate

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
    slack: float = 1.5,
    num_steps: int = 1,
) -> Plan:
    """Schedules x tensor-parallel degrees x residency policies on a cluster.

    A candidate whose lower bound is above ``slack`` times the fastest that fits so far is listed, and not simulated.

    >>> from rollplex.hardware import cluster as nodes
    >>> from rollplex.schedules import Rollplex, Serial
    >>> made = plan("Qwen2.5-VL-7B", nodes("H800"), Workload(prompts=8), schedules=(Serial(), Rollplex()))
    >>> made.best.fits
    True
    """
    case = Scenario(
        geometry=geometry(model),
        cluster=cluster,
        workload=workload or Workload(),
        efficiency=efficiency or Efficiency(),
        interference=interference,
        num_steps=num_steps,
    )
    budget = budget or Budget()
    search = _Search(case, budget)
    candidates = sorted(search.candidates(schedules, residencies), key=lambda c: c.lower_bound_s)
    done: list[Candidate] = []
    fastest = float("inf")
    for candidate in candidates:
        if candidate.why_not:
            done.append(candidate)
        elif candidate.lower_bound_s > slack * fastest:
            done.append(replace(candidate, why_not=f"not simulated: it takes at least {candidate.lower_bound_s:.1f} s"))
        else:
            made = search.simulated(candidate)
            fastest = min(fastest, made.step_s) if made.fits else fastest
            done.append(made)
    done.sort(key=lambda c: (not c.fits, c.step_s if c.step_s == c.step_s else float("inf"), c.lower_bound_s))
    return Plan(tuple(done))


class _Search:
    """Makes candidates, and simulates them with costs and lengths that are computed once."""

    def __init__(self, case: Scenario, budget: Budget) -> None:
        self.case = case
        self.budget = budget
        self.memory: dict[Any, Any] = {}
        self.draws: dict[str, list[Draw]] = {}
        self.tables: dict[str, Timetable] = {}

    def candidates(self, schedules: Sequence[Schedule], residencies: Sequence[Residency]) -> Iterator[Candidate]:
        """Every combination that could be laid out."""
        degrees = [
            tp for tp in (1, 2, 4, 8, 16) if tp <= min(self.case.cluster.num_devices, 2 * self.case.geometry.kv_heads)
        ]
        for schedule in schedules:
            table = self.tables.setdefault(label(schedule), layout(schedule))
            for train_tp in degrees:
                for rollout_tp in (tp for tp in degrees if tp <= train_tp):
                    for residency in residencies:
                        placed = residency.placement(Placement(train_tp=train_tp, rollout_tp=rollout_tp))
                        for share in self._shares(table, placed):
                            yield self._candidate(schedule, table, placed, residency, share)

    def _shares(self, table: Timetable, placed: Placement) -> tuple[float | None, ...]:
        """Shares of the devices for the rollout pool: a few, and the one at which the lanes take least.

        More devices speed one pool up and slow the other down. Steps that overlap take as long as the longest lane, the
        others as long as all lanes together; either has one valley over the share.
        """
        if not table.pools:
            return (None,)

        together = sum if table.synchronous else max

        def taken(share: float) -> float:
            try:
                return float(together(self._lanes(table, placed, self.case.sizes(table, placed, share)).values()))
            except ValueError:  # a pool would be empty
                return float(np.finfo(float).max)

        found = minimize_scalar(taken, bounds=(0.0, 1.0), method="bounded", options={"xatol": 0.02})
        shares = (*SHARES, round(float(found.x), 2))
        # Pools are whole numbers of engines: shares that round to the same pools are the same candidate.
        pools = {round(share * self.case.cluster.num_devices / placed.unit): share for share in reversed(shares)}
        return tuple(sorted(pools.values()))

    def _candidate(
        self, schedule: Schedule, table: Timetable, placed: Placement, residency: Residency, share: float | None
    ) -> Candidate:
        made = Candidate(
            schedule=schedule, placement=placed, residency=residency, rollout_share=share, lower_bound_s=float("inf")
        )
        if self.budget.on_policy and not table.on_policy:
            return replace(made, why_not="off-policy")
        if self.budget.max_staleness is not None and table.staleness > self.budget.max_staleness:
            return replace(made, why_not=f"weights may be {table.staleness} updates old")
        try:
            sizes = self.case.sizes(table, placed, share or 0.5)
            bound = self._bound(table, placed, sizes)
        except ValueError as error:
            return replace(made, why_not=str(error))
        return replace(made, lower_bound_s=bound)

    def _bound(self, table: Timetable, placed: Placement, sizes: dict[str, int]) -> float:
        """The longest lane of a step, on its own pool; a lane never overlaps itself."""
        return max(self._lanes(table, placed, sizes).values()) * (1.0 if table.selection is None else 0.5)

    def _lanes(self, table: Timetable, placed: Placement, sizes: dict[str, int]) -> dict[str, float]:
        """Seconds of work of each lane in a step."""
        costs, draws = self._costs(placed), self._lengths(table)
        lanes: dict[str, float] = {}
        for stage in table.stages:
            for slot in stage.slots:
                pool = table.pool(slot.lane)
                handoff = slot.phase.writes == "rollout" and "policy_prefix" in slot.takes
                draw = draws[0] if slot.phase.writes == "rollout" else draws[0].trained_only
                order = Order(field=slot.phase.writes, draw=draw, devices=sizes[pool], pool=pool, handoff=handoff)
                lanes[slot.lane] = lanes.get(slot.lane, 0.0) + total_s(costs.pieces(order))
        return lanes

    def _costs(self, placed: Placement) -> Remembered:
        roofline = Roofline(
            geometry=self.case.geometry,
            cluster=self.case.cluster,
            placement=placed,
            efficiency=self.case.efficiency,
        )
        return Remembered(roofline, placed, self.memory)

    def _lengths(self, table: Timetable) -> list[Draw]:
        name = "" if table.selection is None else table.selection.name
        if name not in self.draws:
            job = Job(
                timetable=table,
                costs=self._costs(Placement()),
                workload=self.case.workload,
                num_steps=self.steps(table)[0] + FILL,
            )
            self.draws[name] = job.draws()
        return self.draws[name]

    def steps(self, table: Timetable) -> tuple[int, int]:
        """Steps to simulate, and the first of them to leave out: a pipeline must fill, a backlog must level."""
        period = 1 if table.selection is None else table.selection.period
        skip = FILL if period == 1 and (table.pipelined or table.selection is not None) else 0
        return self.case.num_steps * period + skip, skip

    def simulated(self, candidate: Candidate) -> Candidate:
        """The candidate with its figures."""
        table = self.tables[label(candidate.schedule)]
        sizes = self.case.sizes(table, candidate.placement, candidate.rollout_share or 0.5)
        rollout_pool, train_pool = table.pool("rollout"), table.pool("train")
        steps, skip = self.steps(table)
        job = Job(
            timetable=table,
            costs=self._costs(candidate.placement),
            workload=self._lengths(table),
            num_steps=steps,
            held=objects(
                candidate.residency,
                self.case.geometry,
                candidate.placement,
                self.case.workload,
                devices=sizes[train_pool],
                rollout_pool=rollout_pool,
                train_pool=train_pool,
            ),
        )
        made = simulate(job, pools=sizes, interference=self.case.interference, device=repr(self.case.cluster))
        limit = self.budget.memory_bytes or 0.95 * self.case.cluster.device.memory_bytes
        over = {pool: num for pool, num in made.peak_bytes.items() if num > limit}
        why = ""
        if over:
            pool, num = max(over.items(), key=lambda item: item[1])
            largest = sorted(made.peak_owners[pool].items(), key=lambda item: -item[1])[:3]
            owners = ", ".join(f"{owner} {size / 2**30:.1f}" for owner, size in largest)
            why = f"needs {num / 2**30:.1f} GiB of {limit / 2**30:.1f} on pool {pool!r} ({owners})"
        return replace(
            candidate,
            step_s=made.step_s(skip=skip),
            idle_share=made.idle_share,
            peak_bytes=made.peak_bytes,
            bound_by=next(iter(bound_by(made.trace, steps - 1))),
            why_not=why,
            simulation=made,
        )

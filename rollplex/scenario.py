"""A model, a cluster and a workload, on which any schedule can be tried: the common ground of plans and comparisons."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollplex.costs.geometry import Geometry
from rollplex.costs.residency import MANAGED, Residency, objects
from rollplex.costs.roofline import Efficiency, Placement, Roofline
from rollplex.costs.workload import Workload
from rollplex.hardware import Cluster
from rollplex.interference import NONE, Interference
from rollplex.schedule import ONE_POOL, Schedule, Timetable
from rollplex.simulate import Job, Simulation, simulate
from rollplex.standins import stand_ins


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What stays the same while schedules are compared.

    >>> from rollplex.costs.geometry import geometry
    >>> from rollplex.hardware import cluster
    >>> from rollplex.schedules import Serial
    >>> scenario = Scenario(geometry=geometry("Qwen2.5-VL-7B"), cluster=cluster("H800"))
    >>> scenario.simulate(Serial(), Placement(train_tp=4, rollout_tp=4)).step_s() > 0
    True
    """

    geometry: Geometry
    """Sizes of the model."""
    cluster: Cluster
    """The devices."""
    workload: Workload = field(default_factory=Workload)
    """Sizes of a step."""
    efficiency: Efficiency = field(default_factory=Efficiency)
    """How far from the peaks."""
    interference: Interference = NONE
    """What co-running costs."""
    num_steps: int = 1
    """Steps of each simulation."""
    seed: int = 0
    """Seed of the lengths."""

    def simulate(
        self,
        schedule: Schedule,
        placement: Placement | None = None,
        residency: Residency = MANAGED,
        *,
        rollout_share: float = 0.5,
        num_jobs: int = 1,
        num_steps: int | None = None,
        pools: dict[str, Cluster] | None = None,
    ) -> Simulation:
        """Simulate a schedule here.

        ``rollout_share`` is the rollout pool's share of the devices where the schedule wants two pools; ``pools`` gives
        a pool devices of another kind; ``num_jobs`` equal jobs (with lengths of their own) share the pools.
        """
        table = layout(schedule)
        placement = residency.placement(placement or Placement())
        sizes = self.sizes(table, placement, rollout_share)
        costs = Roofline(
            geometry=self.geometry,
            cluster=self.cluster,
            placement=placement,
            efficiency=self.efficiency,
            pools=pools or {},
        )
        rollout_pool, train_pool = table.pool("rollout"), table.pool("train")
        held = objects(
            residency,
            self.geometry,
            placement,
            self.workload,
            devices=sizes[train_pool],
            rollout_pool=rollout_pool,
            train_pool=train_pool,
        )
        jobs = [
            Job(
                name="job" if num_jobs == 1 else f"job {index}",
                timetable=table,
                costs=costs,
                workload=self.workload,
                num_steps=num_steps or self.num_steps,
                seed=self.seed + index,
                held=held,
            )
            for index in range(num_jobs)
        ]
        switch_s = self.switch_s(placement) if num_jobs > 1 else 0.0
        device = f"{self.cluster.num_devices} x {self.cluster.device.name}"
        return simulate(*jobs, pools=sizes, interference=self.interference, switch_s=switch_s, device=device)

    def sizes(self, table: Timetable, placement: Placement, rollout_share: float = 0.5) -> dict[str, int]:
        """Devices of each pool; the rollout pool is a whole number of engines, the rest a whole number of ranks."""
        if not table.pools:
            return {ONE_POOL: self.cluster.num_devices}
        unit = placement.unit
        num = round(self.cluster.num_devices * rollout_share / unit) * unit
        if not 0 < num < self.cluster.num_devices:
            raise ValueError(
                f"splitting {self.cluster.num_devices} devices into two pools for {table.name}: groups of {unit} leave "
                "one pool empty. Use more devices or a smaller tensor-parallel degree."
            )
        return {"rollout": num, "train": self.cluster.num_devices - num, "link": 1}

    def switch_s(self, placement: Placement) -> float:
        """Time to bring another job's weights from host memory: its warm state."""
        num = self.geometry.dtype_bytes * self.geometry.weights / placement.rollout_tp
        return num / self.cluster.device.host_bytes_per_s


def layout(schedule: Schedule) -> Timetable:
    """A schedule's timetable over stand-ins, with a transfer of weights where it needs two pools.

    >>> from rollplex.schedules_pools import Disaggregated
    >>> layout(Disaggregated()).pool("rollout")
    'rollout'
    """
    table = schedule.timetable(stand_ins(engine_copy=True))
    return table if table.pools else schedule.timetable(stand_ins())

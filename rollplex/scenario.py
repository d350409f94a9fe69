"""A model, a cluster and a workload, on which any schedule can be tried: the common ground of plans and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollplex.bounds import COUNT, NUMBER, SHARE, expect
from rollplex.costs.geometry import Geometry
from rollplex.costs.placement import Placement, PlacementError
from rollplex.costs.residency import MANAGED, Residency, objects
from rollplex.costs.roofline import Efficiency, Roofline
from rollplex.costs.workload import Workload
from rollplex.hardware import Cluster
from rollplex.interference import NONE, Interference
from rollplex.schedule import ONE_POOL, Schedule, Timetable
from rollplex.simulate import Job, Simulation, simulate
from rollplex.simulate.held import Held
from rollplex.standins import stand_ins

_MADE_BY: dict[str, tuple[type, str]] = {
    "geometry": (Geometry, 'rollplex.costs.geometry.geometry("Qwen2.5-VL-7B")'),
    "cluster": (Cluster, 'rx.cluster("H800", num_nodes=2)'),
    "workload": (Workload, "rx.Workload(prompts=16)"),
    "efficiency": (Efficiency, "rx.Efficiency(prefix=0.4)"),
    "interference": (Interference, "rx.Interference(compute_stretch=1.5)"),
}
"""Field of a scenario -> its type, and what makes one."""


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
    reference: bool = True
    """Whether the loss needs a frozen reference model."""
    num_steps: int = 1
    """Steps of each simulation."""
    seed: int = 0
    """Seed of the lengths."""

    def __post_init__(self) -> None:
        for name, (kind, example) in _MADE_BY.items():
            if not isinstance(vars(self)[name], kind):
                raise ValueError(
                    f"making a Scenario: its {name} is {vars(self)[name]!r}; give one of class {kind.__name__}, as {example} is"
                )
        expect("making a Scenario", vars(self), num_steps=COUNT, seed=NUMBER)

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
        """Simulate a schedule here, on the usual placement unless one is given.

        ``rollout_share`` is the rollout pool's share of the devices where the schedule wants two pools; ``pools`` gives
        a pool devices of another kind; ``num_jobs`` equal jobs (with lengths of their own) share the pools.
        """
        expect("simulating a scenario", {"num_jobs": num_jobs}, num_jobs=COUNT)
        table = self.layout(schedule)
        placement = residency.placement(placement or self.usual_placement())
        sizes = self.sizes(table, placement, rollout_share)
        costs, held = self.costs(placement, pools), self.held(table, placement, residency, sizes)
        jobs = [
            Job(
                name="job" if num_jobs == 1 else f"job {index}",
                timetable=table,
                costs=costs,
                workload=self.workload,
                num_steps=self.num_steps if num_steps is None else num_steps,
                seed=self.seed + index,
                held=held,
            )
            for index in range(num_jobs)
        ]
        switch_s = self.switch_s(placement) if num_jobs > 1 else 0.0
        return simulate(*jobs, pools=sizes, interference=self.interference, switch_s=switch_s, device=self.devices)

    @property
    def devices(self) -> str:
        """What the predicted times belong to, e.g. ``"16 x H800"``."""
        return f"{self.cluster.num_devices} x {self.cluster.device.name}"

    def layout(self, schedule: Schedule) -> Timetable:
        """A schedule's timetable over this scenario's phases."""
        return layout(schedule, reference=self.reference)

    def usual_placement(self) -> Placement:
        """A node's worth of tensor parallelism for training, as far as heads and two pools allow; half of it for engines.

        >>> from rollplex.costs.geometry import GEOMETRIES
        >>> from rollplex.hardware import cluster
        >>> [
        ...     Scenario(geometry=model, cluster=cluster("H800", num_nodes=4)).usual_placement().train_tp
        ...     for model in GEOMETRIES.values()
        ... ]
        [8, 4, 8, 8]
        """
        most = min(self.cluster.devices_per_node, max(self.cluster.num_devices // 2, 1))
        width = max(tp for tp in (1, 2, 4, 8) if tp <= most and self.geometry.can_cut(tp))
        return Placement(train_tp=width, rollout_tp=max(width // 2, 1))

    def costs(self, placement: Placement, pools: dict[str, Cluster] | None = None) -> Roofline:
        """What phases cost here, for models that are cut so."""
        return Roofline(
            geometry=self.geometry,
            cluster=self.cluster,
            placement=placement,
            efficiency=self.efficiency,
            pools=pools or {},
            reference=self.reference,
        )

    def held(
        self, table: Timetable, placement: Placement, residency: Residency, sizes: Mapping[str, int]
    ) -> tuple[Held, ...]:
        """What occupies device memory, and when."""
        rollout_pool, train_pool = table.pool("rollout"), table.pool("train")
        return objects(
            residency,
            self.geometry,
            placement,
            self.workload,
            devices=sizes[train_pool],
            rollout_devices=sizes[rollout_pool],
            rollout_pool=rollout_pool,
            train_pool=train_pool,
            reference=self.reference,
        )

    def sizes(self, table: Timetable, placement: Placement, rollout_share: float = 0.5) -> dict[str, int]:
        """Devices of each pool; the rollout pool is a whole number of engines, the rest a whole number of ranks."""
        expect("dividing devices", {"rollout_share": rollout_share}, rollout_share=SHARE)
        if not table.pools:
            return {ONE_POOL: self.cluster.num_devices}
        unit = placement.unit
        num = round(self.cluster.num_devices * rollout_share / unit) * unit
        if not 0 < num < self.cluster.num_devices:
            raise PlacementError(
                f"splitting {self.cluster.num_devices} devices into two pools for {table.name}: groups of {unit} leave "
                "one pool empty. Use more devices or a smaller tensor-parallel degree."
            )
        return {"rollout": num, "train": self.cluster.num_devices - num, "link": 1}

    def switch_s(self, placement: Placement) -> float:
        """Time to bring another job's weights from host memory: its warm state."""
        num = self.geometry.dtype_bytes * self.geometry.weights / placement.rollout_tp
        return num / self.cluster.device.host_bytes_per_s


def layout(schedule: Schedule, *, reference: bool = True) -> Timetable:
    """A schedule's timetable over stand-ins, with a transfer of weights where it needs two pools.

    >>> from rollplex.schedules_pools import Disaggregated
    >>> layout(Disaggregated()).pool("rollout")
    'rollout'
    """
    if schedule is None or isinstance(schedule, str | type):
        name = schedule.__name__ if isinstance(schedule, type) else "Rollplex"
        raise ValueError(f"laying out {schedule!r}: it is no schedule; give an object of one, as {name}() is")
    table = schedule.timetable(stand_ins(reference=reference, engine_copy=True))
    return table if table.pools else schedule.timetable(stand_ins(reference=reference))

"""The common ground of comparisons: what is changed in it shows, and what it does not have is refused."""

from dataclasses import replace

import pytest

from rollplex.costs.geometry import GEOMETRIES, geometry
from rollplex.costs.placement import Placement, PlacementError
from rollplex.costs.workload import Workload
from rollplex.hardware import cluster
from rollplex.presets.table import SCHEDULES, label
from rollplex.scenario import Scenario, layout
from rollplex.schedule import Schedule
from rollplex.schedules import Serial
from rollplex.schedules_pools import Disaggregated

NODES = cluster("H800", num_nodes=2)
CASE = Scenario(geometry=geometry("Qwen2.5-VL-7B"), cluster=NODES, workload=Workload(prompts=8, response_tokens=64))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=label)
def test_without_a_reference_no_schedule_has_a_phase_of_it(schedule: Schedule) -> None:
    def phases(reference: bool) -> set[str]:
        table = layout(schedule, reference=reference)
        return {slot.phase.writes for stage in table.stages for slot in stage.slots}

    assert phases(True) - phases(False) == {"reference_prefix"}


def test_a_pool_of_faster_devices_takes_less() -> None:
    slow = CASE.simulate(Disaggregated())
    fast = CASE.simulate(Disaggregated(), pools={"train": cluster("B200", num_nodes=2)})
    assert fast.trace.busy_s(0)["suffix"] < slow.trace.busy_s(0)["suffix"]
    assert fast.trace.busy_s(0)["decode"] == slow.trace.busy_s(0)["decode"]


def test_transfers_within_a_node_do_not_leave_it() -> None:
    inside, between = (
        replace(CASE, cluster=nodes).simulate(Disaggregated(), Placement(train_tp=4, rollout_tp=4)).trace.busy_s(0)
        for nodes in (cluster("H800"), cluster("H800", num_nodes=2, devices_per_node=4))
    )
    assert inside["publish"] < between["publish"]


@pytest.mark.parametrize("model", GEOMETRIES)
@pytest.mark.parametrize("devices", [1, 2, 3, 8, 32])
def test_the_usual_placement_can_be_made(model: str, devices: int) -> None:
    case = replace(CASE, geometry=GEOMETRIES[model], cluster=cluster("H800", devices_per_node=devices))
    placed = case.usual_placement()
    placed.expect(case.geometry)
    assert placed.rollout_tp <= placed.train_tp <= devices


def test_one_device_has_no_two_pools() -> None:
    with pytest.raises(PlacementError, match="leave one pool empty"):
        replace(CASE, cluster=cluster("H800", devices_per_node=1)).simulate(Disaggregated())


@pytest.mark.parametrize(
    ("name", "value"), [("rollout_share", 2.0), ("rollout_share", float("nan")), ("num_jobs", 0), ("num_steps", 0)]
)
def test_a_part_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; give"):
        CASE.simulate(Disaggregated(), **{name: value})  # type: ignore[arg-type]


def test_a_predicted_trace_says_for_what() -> None:
    trace = CASE.simulate(Serial()).trace
    assert (trace.kind, trace.device) == ("predicted", "16 x H800")

"""Plans: complete, honest about what does not fit, and never ranked by what was not simulated."""

from dataclasses import replace

import pytest

from rollplex.candidate import Budget, Plan
from rollplex.costs.residency import MANAGED, NAIVE
from rollplex.costs.workload import Workload
from rollplex.hardware import cluster
from rollplex.planner import SHARES, plan
from rollplex.schedules import Rollplex, Serial
from rollplex.schedules_pools import Disaggregated, OneStepOff

WORK = Workload(prompts=8, prompt_tokens=1024, response_tokens=128)
NODES = cluster("H800", num_nodes=2)


def small(**options: object) -> Plan:
    return plan("Qwen2.5-VL-7B", NODES, WORK, schedules=(Serial(), Rollplex(), OneStepOff()), **options)  # type: ignore[arg-type]


PLAN = small(slack=100.0)


def test_the_fastest_that_fits_comes_first() -> None:
    fitting = [candidate.step_s for candidate in PLAN.candidates if candidate.fits]
    assert fitting == sorted(fitting)
    assert PLAN.candidates[: len(fitting)] == tuple(c for c in PLAN.candidates if c.fits)


def test_what_does_not_fit_says_why() -> None:
    assert all(c.why_not for c in PLAN.candidates if not c.fits)
    assert "GiB" in small(budget=Budget(memory_bytes=2**30)).candidates[0].why_not


def test_a_bound_is_never_above_the_simulated_time() -> None:
    assert all(c.lower_bound_s <= c.step_s * 1.001 for c in PLAN.candidates if c.simulation is not None)


def test_pruning_does_not_change_the_best() -> None:
    assert small(slack=1.0).best.row() == PLAN.best.row()


def test_the_front_gets_slower_and_smaller() -> None:
    front = PLAN.pareto().candidates
    times = [c.step_s for c in front]
    peaks = [max(c.peak_bytes.values()) for c in front]
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)


def test_a_budget_of_policy_leaves_out_stale_schedules() -> None:
    names = {c.name for c in small(budget=Budget(on_policy=True)).candidates if c.fits}
    assert names == {"Serial", "Rollplex"}


def test_a_managed_residency_needs_less_than_a_naive_one() -> None:
    one, other = (small(residencies=(r,), slack=100.0).candidates for r in (MANAGED, NAIVE))
    smallest = [min(max(c.peak_bytes.values()) for c in cs if c.peak_bytes) for cs in (one, other)]
    assert smallest[0] < smallest[1]


def test_too_few_devices_for_two_pools_is_a_reason_not_an_error() -> None:
    made = plan("Qwen2.5-VL-7B", cluster("H800").part(1), WORK, schedules=(Disaggregated(),))
    assert all("pool" in c.why_not for c in made.candidates)
    with pytest.raises(ValueError, match="none fits"):
        _ = made.best


def test_a_plan_draws_a_candidates_timeline() -> None:
    assert PLAN.timeline(0).data


def test_a_plan_is_a_table() -> None:
    frame = PLAN.frame()
    assert {"schedule", "train_tp", "rollout_tp", "step_s", "bound_by", "idle_share", "fits", "why_not"} <= set(frame)


@pytest.mark.parametrize("response_tokens", [128, 512])
def test_the_searched_split_of_two_pools_is_as_good_as_the_best_given_one(response_tokens: int) -> None:
    work = replace(WORK, prompts=64, response_tokens=response_tokens)
    made = plan("Qwen2.5-VL-7B", NODES, work, schedules=(Disaggregated(),), residencies=(MANAGED,), slack=100.0)
    times = {c.rollout_share: c.step_s for c in made.candidates if c.placement.unit == 1}
    searched = [share for share in times if share not in SHARES]
    assert len(searched) == 1
    assert times[searched[0]] <= 1.02 * min(times[share] for share in SHARES)
    assert times[searched[0]] < 0.95 * max(times.values())

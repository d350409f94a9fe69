"""Plans: complete, honest about what does not fit, and never ranked by what was not simulated."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollplex.candidate import Budget, Plan
from rollplex.costs.geometry import geometry
from rollplex.costs.residency import MANAGED, NAIVE
from rollplex.costs.workload import Workload
from rollplex.hardware import cluster
from rollplex.planner import SHARES, _Search, plan
from rollplex.scenario import Scenario
from rollplex.schedules import Rollplex, Serial
from rollplex.schedules_pools import Disaggregated, OneStepOff, partial_rollout

WORK = Workload(prompts=8, prompt_tokens=1024, response_tokens=128)
NODES = cluster("H800", num_nodes=2)


def small(**options: object) -> Plan:
    return plan("Qwen2.5-VL-7B", NODES, WORK, **{"schedules": (Serial(), Rollplex(), OneStepOff()), **options})  # type: ignore[arg-type]


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


@given(
    prompts=st.integers(1, 20),
    prompt_spread=st.floats(0, 1),
    response_spread=st.floats(0, 1.5),
    num_steps=st.integers(1, 2),
    num_devices=st.sampled_from([1, 3, 8]),
)
@settings(max_examples=8, deadline=None)
def test_a_bound_holds_whatever_the_lengths(
    prompts: int, prompt_spread: float, response_spread: float, num_steps: int, num_devices: int
) -> None:
    work = Workload(prompts=prompts, group=2, prompt_spread=prompt_spread, response_spread=response_spread)
    made = plan(
        "Qwen2.5-VL-3B",
        cluster("H100", devices_per_node=num_devices),
        work,
        schedules=(Serial(), OneStepOff(), partial_rollout(Rollplex())),
        residencies=(MANAGED,),
        slack=1e6,
        num_steps=num_steps,
    )
    assert [c for c in made.candidates if c.simulation is not None]
    assert all(c.lower_bound_s <= c.step_s * (1 + 1e-9) for c in made.candidates if c.simulation is not None)


def test_pruning_leaves_one_of_each_schedule_to_compare_with() -> None:
    table = small(slack=1.0).by_schedule()
    assert set(table.index) == {"Serial", "Rollplex", "OneStepOff"}
    assert table.loc["Serial", "times_serial"] == 1.0
    assert (table["why_not"] == "").all()


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
    made = plan("Qwen2.5-VL-7B", cluster("H800", devices_per_node=1), WORK, schedules=(Disaggregated(),))
    assert all("pool" in c.why_not for c in made.candidates)
    with pytest.raises(ValueError, match="none fits"):
        _ = made.best


def test_a_plan_draws_a_candidates_timeline() -> None:
    assert PLAN.timeline(0).data


def test_a_plan_is_a_table_that_says_what_its_numbers_are() -> None:
    frame = PLAN.frame()
    assert {"schedule", "train_tp", "rollout_tp", "step_s", "bound_by", "idle_share", "fits", "why_not"} <= set(frame)
    assert set(frame["kind"]) == {"predicted"}
    assert all(
        "predicted" in text for text in (repr(PLAN), repr(PLAN.best), PLAN._repr_html_(), PLAN.timeline().to_json())
    )
    assert set(PLAN.by_schedule()["kind"]) == {"predicted"}


def test_a_comparison_says_why_one_is_faster() -> None:
    places = PLAN.by_schedule()["candidate"]
    serial, fast = int(places["Serial"]), int(places["Rollplex"])
    table = PLAN.compare(serial, fast)
    for index in (serial, fast):
        one = PLAN.candidates[index]
        assert table[f"{index}: {one.name}", "predicted bounds_s"].sum() == pytest.approx(one.step_s)
        assert one.bound_by == max(one.bounds_s, key=one.bounds_s.__getitem__)
    hidden = table[f"{fast}: Rollplex"].loc["prefix(policy)"]
    assert hidden["predicted work_s"] > 0 == hidden["predicted bounds_s"]
    assert (table[f"{serial}: Serial"].loc["prefix(policy)"] > 0).all()


def test_schedules_that_share_a_name_are_planned_apart() -> None:
    less, more = (partial_rollout(Serial(), over) for over in (1.25, 3.0))
    made = plan("Qwen2.5-VL-3B", NODES, WORK, schedules=(less, more), residencies=(MANAGED,), slack=100.0)
    best = made.by_schedule()["step_s"]
    assert len(best) == 2
    assert best.iloc[0] != best.iloc[1]


def test_a_degree_that_heads_do_not_divide_into_is_listed_and_not_simulated() -> None:
    wide = [c for c in PLAN.candidates if c.placement.train_tp == 8]
    assert wide
    assert all("28 heads" in c.why_not and c.simulation is None for c in wide)


def test_state_that_main_memory_has_no_room_for_does_not_fit() -> None:
    tight = replace(NODES, host_bytes=1e9)
    made = plan("Qwen2.5-VL-7B", tight, WORK, schedules=(Serial(),), residencies=(MANAGED,))
    assert not any(c.fits for c in made.candidates)
    assert "GiB of 1 in a node's main memory" in made.candidates[0].why_not


def test_without_a_reference_a_step_is_shorter_and_has_no_pass_of_it() -> None:
    one, other = (small(reference=reference).best for reference in (True, False))
    assert other.step_s < one.step_s
    assert "prefix(reference)" in one.work_s
    assert "prefix(reference)" not in other.work_s


BAD: dict[str, tuple[dict[str, object], str]] = {
    "model": ({"model": "nope"}, "no published model"),
    "cluster": ({"cluster": "H100"}, r"its cluster is 'H100'; give .*rx\.cluster"),
    "workload": ({"workload": {"prompts": 4}}, r"its workload is .*; give .*rx\.Workload"),
    "a name for a schedule": ({"schedules": ["Serial"]}, r"'Serial': it is no schedule; give an object"),
    "a class for a schedule": ({"schedules": [Serial]}, r"as Serial\(\) is"),
    "a text of schedules": ({"schedules": "Serial"}, "schedules is 'Serial'; give a list"),
    "no schedule": ({"schedules": ()}, r"schedules is \(\); give a list"),
    "one twice": ({"schedules": (Serial(), Serial())}, "given twice"),
    "no residency": ({"residencies": ("managed",)}, "residencies is .*; give a list"),
    "no budget": ({"budget": 80}, "budget is 80; give a Budget"),
    "slack": ({"slack": 0.5}, r"slack is 0\.5; give"),
    "slack of nothing": ({"slack": float("nan")}, "slack is nan; give"),
    "steps": ({"num_steps": 0}, "num_steps is 0; give"),
    "efficiency": ({"efficiency": 0.5}, r"its efficiency is 0\.5; give"),
    "interference": ({"interference": None}, "its interference is None; give"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_planned_is_refused_with_what_to_give(case: str) -> None:
    changes, told = BAD[case]
    options: dict[str, object] = {
        "model": "Qwen2.5-VL-7B",
        "cluster": NODES,
        "workload": WORK,
        "schedules": (Serial(),),
    }
    with pytest.raises(ValueError, match=told):
        plan(**(options | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [{"memory_bytes": 0}, {"memory_bytes": float("nan")}, {"max_staleness": -1}])
def test_a_budget_of_nothing_is_refused(budget: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"making a Budget: .*; give"):
        Budget(**budget)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ask", [lambda p: p.best, lambda p: p.pareto(), lambda p: p.timeline(0), lambda p: p.compare(0)]
)
def test_a_plan_that_nothing_fits_says_so_whatever_is_asked(ask: Callable[[Plan], object]) -> None:
    nothing = small(budget=Budget(memory_bytes=2**30, on_policy=True), schedules=(OneStepOff(),))
    with pytest.raises(ValueError, match="off-policy"):
        ask(nothing)
    assert nothing.by_schedule()["why_not"].tolist() == ["off-policy"]


def test_a_candidate_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="counted from 0"):
        PLAN.timeline(10**6)


@pytest.mark.parametrize("response_tokens", [64, 256])
def test_the_searched_split_of_two_pools_is_as_good_as_the_best_given_one(response_tokens: int) -> None:
    work = replace(WORK, prompts=64, response_tokens=response_tokens)
    made = plan("Qwen2.5-VL-7B", NODES, work, schedules=(Disaggregated(),), residencies=(MANAGED,), slack=100.0)
    times = {c.rollout_share: c.step_s for c in made.candidates if c.placement.unit == 1}
    searched = [share for share in times if share not in SHARES]
    assert len(searched) == 1
    assert times[searched[0]] <= 1.02 * min(times[share] for share in SHARES)
    assert times[searched[0]] < 0.95 * max(times.values())


def test_schedules_are_compared_on_the_same_steps() -> None:
    """A pipeline counts its later steps; what needs no filling must count those too, or luck decides."""
    case = Scenario(geometry=geometry("Qwen2.5-VL-3B"), cluster=NODES, workload=WORK, num_steps=2)
    search = _Search(case, Budget(), (Serial(), OneStepOff()))
    (_, serial), (_, pipelined) = search.schedules.values()
    _, skip = search.steps(pipelined)
    assert skip > 0 == search.steps(serial)[1]
    for one, other in zip(search._lengths(serial), search._lengths(pipelined)[skip:], strict=True):
        assert one is other

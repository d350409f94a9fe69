"""The virtual clock: what it may never do, and small cases that can be computed by hand."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate.fakes import POOLS, SECONDS, job, layout

from rollplex.costs.costs import Given, Order, Piece
from rollplex.costs.workload import Workload
from rollplex.interference import Interference, eq1_step_s
from rollplex.schedule import Schedule, ScheduleError
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed
from rollplex.schedules_pools import (
    BoundedStaleness,
    Disaggregated,
    Multiplexed,
    OneStepOff,
    Streaming,
    oversampling,
    partial_rollout,
    tail_batching,
)
from rollplex.selection import Oversample, Partial, TailBatch
from rollplex.simulate import simulate
from rollplex.simulate.held import Held
from rollplex.trace import Trace

SCHEDULES: list[Schedule] = [
    Serial(),
    Rollplex(),
    OnePrefill(),
    Streamed(),
    Streamed(handoff=True),
    Disaggregated(),
    Disaggregated(early_prefix=True),
    OneStepOff(),
    BoundedStaleness(3, early_prefix=True),
    Streaming(),
    Streaming(2),
    partial_rollout(Rollplex()),
    oversampling(Serial()),
    tail_batching(Serial()),
]
times = st.floats(0.0, 20.0).map(lambda x: round(x, 3))


def assert_sound(trace: Trace) -> None:
    lanes: dict[str, list[tuple[float, float]]] = {}
    for tick in trace.ticks:
        assert tick.end_s >= tick.start_s >= 0
        lanes.setdefault(tick.lane, []).append((tick.start_s, tick.end_s))
    for spans in lanes.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-9, "a lane overlaps itself"
    ends = [tick.end_s for tick in trace.ticks]
    assert ends == sorted(ends), "time runs backwards"


@given(
    schedule=st.sampled_from(SCHEDULES),
    seconds=st.fixed_dictionaries(dict.fromkeys(SECONDS, times)),
    slow=st.floats(1.0, 3.0),
    stretch=st.floats(1.0, 3.0),
)
@settings(max_examples=60, deadline=None)
def test_time_is_monotone_and_no_lane_overlaps_itself(
    schedule: Schedule, seconds: dict[str, float], slow: float, stretch: float
) -> None:
    interference = Interference(decode_slowdown=slow, compute_stretch=stretch)
    made = simulate(job(schedule, seconds, steps=3), pools=POOLS, interference=interference)
    assert_sound(made.trace)


def test_the_soundness_check_objects_to_a_lane_that_overlaps_itself() -> None:
    trace = simulate(job(Serial())).trace
    trace.ticks.append(replace(trace.ticks[-1], start_s=trace.ticks[-1].start_s - 0.1))
    with pytest.raises(AssertionError, match="overlaps itself"):
        assert_sound(trace)


@given(decode=times, prefix=times, post=times, delay=st.floats(0.0, 5.0))
@settings(max_examples=60, deadline=None)
def test_rollplex_is_eq_1_where_only_a_constant_delay_interferes(
    decode: float, prefix: float, post: float, delay: float
) -> None:
    seconds = {"rollout": 1 + decode, "policy_prefix": prefix, "suffix": post}
    made = simulate(job(Rollplex(), seconds), interference=Interference.eq1(delay))
    assert made.step_s() == pytest.approx(eq1_step_s(1 + decode, prefix, post, delay))


@given(schedule=st.sampled_from(SCHEDULES[:5]), seconds=st.fixed_dictionaries(dict.fromkeys(SECONDS, times)))
@settings(max_examples=40, deadline=None)
def test_without_interference_no_schedule_of_one_pool_is_slower_than_serial(
    schedule: Schedule, seconds: dict[str, float]
) -> None:
    assert simulate(job(schedule, seconds)).end_s <= simulate(job(Serial(), seconds)).end_s + 1e-6


def test_under_time_slicing_overlap_gains_nothing() -> None:
    sliced = simulate(job(Rollplex()), interference=Interference.time_slicing())
    assert sliced.step_s() == pytest.approx(simulate(job(Serial())).step_s())


def test_a_stretched_prefix_runs_at_full_speed_again_after_decode() -> None:
    # 8 s of decode leave 8 / 2 = 4 s of a 10 s prefix done; the other 6 s follow.
    seconds = {"rollout": 8.0, "policy_prefix": 10.0}
    made = simulate(job(Rollplex(), seconds), interference=Interference(compute_stretch=2.0))
    assert made.step_s() == pytest.approx(14.0)


def test_one_step_off_is_bound_by_its_slower_pool() -> None:
    made = simulate(job(OneStepOff(), steps=8), pools=POOLS)
    assert made.step_s(skip=4) == pytest.approx(8.0)  # decode 8 s against 1 + 2 + 4 + 1 s of training


def test_staleness_zero_waits_for_the_update() -> None:
    assert simulate(job(Disaggregated(), steps=4), pools=POOLS).step_s() == pytest.approx(sum(SECONDS.values()))


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_no_rollout_samples_from_weights_older_than_allowed(staleness: int) -> None:
    seconds = SECONDS | {"rollout": 1.0}
    trace = simulate(job(BoundedStaleness(staleness), seconds, steps=9), pools=POOLS).trace
    updates = {t.step: t.end_s for t in trace.ticks if t.phase == "update"}
    starts: dict[int, float] = {}
    for tick in trace.ticks:
        if tick.phase == "decode":
            starts.setdefault(tick.step, tick.start_s)
    lags = [step - sum(end <= start + 1e-9 for end in updates.values()) for step, start in starts.items()]
    assert max(lags) == staleness  # reached, and never passed


def test_streamed_suffixes_start_before_decode_ends() -> None:
    trace = simulate(job(Streamed())).trace
    suffix = min(t.start_s for t in trace.ticks if t.phase == "suffix")
    assert suffix < max(t.end_s for t in trace.ticks if t.phase == "decode")


def test_two_balanced_jobs_share_two_pools_in_the_time_of_one() -> None:
    seconds = {"rollout": 5.0, "suffix": 5.0}
    alone = simulate(job(Multiplexed(), seconds, steps=6), pools=POOLS).step_s("job")
    a, b = job(Multiplexed(), seconds, name="a", steps=6), job(Multiplexed(), seconds, name="b", steps=6)
    both = simulate(a, b, pools=POOLS)
    assert both.step_s("a", skip=2) == pytest.approx(alone) == pytest.approx(both.step_s("b", skip=2))
    assert both.idle_share < 0.1


def test_changing_jobs_costs_its_time() -> None:
    a, b = (job(Multiplexed(), name=name, steps=3) for name in "ab")
    assert simulate(a, b, pools=POOLS, switch_s=1.0).end_s > simulate(a, b, pools=POOLS).end_s


def test_the_same_seed_gives_the_same_trace() -> None:
    one, two = (simulate(job(partial_rollout(Rollplex()), steps=3)).trace.ticks for _ in range(2))
    assert one == two


def test_memory_follows_the_contracts() -> None:
    held = (
        Held(owner="weights", num_bytes=10),
        Held(owner="boundary", num_bytes=5, since="policy_prefix", until="suffix"),
    )
    samples = simulate(replace(job(Serial()), held=held)).trace.samples
    assert [s.owners.get("boundary", 0) for s in samples if s.owners][-1] == 0
    assert max(sum(s.owners.values()) for s in samples) == 15


@pytest.mark.parametrize(
    "schedule", [s for s in SCHEDULES if s.name not in ("Serial", "Rollplex", "OnePrefill", "Streamed")]
)
def test_what_only_a_simulator_runs_is_refused_live(schedule: Schedule) -> None:
    with pytest.raises(ScheduleError, match="a live run has one pool and one step"):
        layout(schedule).check()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_every_schedule_keeps_the_rules(schedule: Schedule) -> None:
    layout(schedule).check(live=False)


def test_overlapping_steps_on_shared_weights_are_refused() -> None:
    from rollplex.standins import stand_ins

    shared = [*stand_ins(), *(p for p in stand_ins(engine_copy=True) if p.writes == "published")]
    with pytest.raises(ScheduleError, match="share storage"):
        OneStepOff().timetable(shared).check(live=False)


def test_a_stand_in_says_that_it_cannot_run() -> None:
    from rollplex.standins import stand_ins

    with pytest.raises(RuntimeError, match="stand-in"):
        stand_ins()[0].run()


@pytest.mark.parametrize("selection", [Partial(1.5), Oversample(1.5), TailBatch(1.5)], ids=lambda s: s.name)
def test_a_selection_shortens_the_rollout_and_trains_on_as_many(selection: Partial | Oversample | TailBatch) -> None:
    workload = Workload(prompts=16, group=4, response_spread=1.0)
    steps = [next_draw for next_draw, _ in zip(selection.draws(workload), range(12), strict=False)]
    longest = sum(workload.draw(i).responses.max() for i in range(12))
    assert sum(draw.responses.max() for draw in steps) < longest
    assert all(len(draw.suffixes()[0]) == 64 for draw in steps)


def test_partial_rollout_loses_no_token() -> None:
    draws = [d for d, _ in zip(Partial(1.5).draws(Workload(prompts=8, group=2)), range(20), strict=False)]
    decoded = sum(int(d.responses.sum()) for d in draws)
    trained = sum(int(d.suffixes()[1].sum()) for d in draws)
    backlog = int(draws[-1].before().sum() + draws[-1].responses.sum())
    assert trained <= decoded <= trained + backlog


def test_by_hand_costs_leave_out_what_is_not_named() -> None:
    assert simulate(job(Serial(), {"rollout": 3.0})).step_s() == pytest.approx(3.0)
    assert Given({}).seconds == {}


class ByHand:
    """Costs that return whatever they were made with."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def pieces(self, order: Order) -> Any:
        return self.found


@pytest.mark.parametrize("found", [None, 3.0, ["a"], [Piece("a", 1.0), None]], ids=repr)
def test_costs_that_are_no_pieces_are_refused(found: object) -> None:
    with pytest.raises(ValueError, match=r"ByHand\.pieces returned .*; return a list of Piece"):
        simulate(replace(job(Serial()), costs=ByHand(found)))


def test_pieces_that_come_one_by_one_all_count() -> None:
    made = simulate(replace(job(Serial()), costs=ByHand(piece for piece in [Piece("a", 1.0), Piece("b", 2.0)])))
    assert made.step_s() == pytest.approx(3.0)  # the first phase takes both: nothing is left for the others


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no job": (simulate, "give at least one Job"),
    "no object of one": (lambda: simulate(job), "give at least one Job"),  # type: ignore[arg-type]
    "one name": (lambda: simulate(job(Serial()), job(Serial())), "give each a name of its own"),
    "a pool of nothing": (lambda: simulate(job(Serial()), pools={"all": 0}), "all is 0; give a whole number"),
    "a pool that is missing": (lambda: simulate(job(Serial()), pools={"al": 1}), "Pass pools="),
    "a switch back in time": (lambda: simulate(job(Serial()), switch_s=-1.0), r"switch_s is -1\.0; give"),
    "no interference": (lambda: simulate(job(Serial()), interference="none"), "give an Interference"),  # type: ignore[arg-type]
    "a schedule": (lambda: replace(job(Serial()), timetable=Serial()), "lay a schedule out first"),
    "no step": (lambda: replace(job(Serial()), num_steps=0), "num_steps is 0; give"),
    "no lengths": (lambda: simulate(replace(job(Serial()), workload=[])), "give a Workload, or a Draw for each step"),
    "other lengths": (
        lambda: simulate(replace(job(Serial()), workload=[4])),
        "give a Workload, or a Draw for each step",
    ),
    "another job": (lambda: simulate(job(Serial())).step_s("b"), "the jobs are job"),
    "steps that were not": (lambda: simulate(job(Serial())).step_s(skip=1), "1 were simulated; skip fewer"),
    "steps before the first": (lambda: simulate(job(Serial())).step_s(skip=-1), "skip fewer"),
    "bytes below none": (lambda: Held(owner="a", num_bytes=-1), "num_bytes is -1; give"),
    "an unknown beginning": (lambda: Held(owner="a", num_bytes=1, since="sufix"), "since and until are among"),
    "an end and no beginning": (lambda: Held(owner="a", num_bytes=1, until="suffix"), "say since when"),
    "an unknown place": (
        lambda: simulate(replace(job(Serial()), held=(Held(owner="a", num_bytes=1, pool="x"),))),
        r"it needs pools \['all', 'x'\]",
    ),
    "a speedup by sharing": (lambda: Interference(compute_stretch=0.9), r"compute_stretch is 0\.9; give"),
    "a delay that is none": (lambda: Interference(decode_delay_s=float("nan")), "decode_delay_s is nan; give"),
    "no staleness": (lambda: BoundedStaleness(0), "0 is Disaggregated"),
    "staleness below none": (lambda: Streaming(-1), "staleness is -1; give"),
    "fewer than needed": (lambda: Partial(0.5), r"over is 0\.5; give a number above 1"),
    "no more than needed": (lambda: TailBatch(1.0), r"over is 1\.0; give"),
    "two selections": (lambda: partial_rollout(oversampling(Serial())), "selects nothing itself"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_simulated_is_refused_with_what_to_give(case: str) -> None:
    made, told = REFUSED[case]
    with pytest.raises(ValueError, match=told):
        made()


def test_a_simulation_says_that_it_is_predicted() -> None:
    made = simulate(job(Serial()))
    assert "predicted" in repr(made)
    assert "predicted" in repr(made.trace)

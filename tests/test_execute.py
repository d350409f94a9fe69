"""Executors: turns of the lanes, barriers, streams, and what is left after an error."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any, get_args

import pytest
import torch
from fake_phases import Fake, Value, board, counted, failing, making, reading, run, slot, table

from rollplex.execute import ExecutorName
from rollplex.feed import WAITING
from rollplex.phases.phase import Tick

both = pytest.mark.parametrize("executor", get_args(ExecutorName))


def test_lanes_take_turns_tick_by_tick() -> None:
    """One thread serves the lanes in their order, a tick each."""
    log: list[str] = []
    run(table([slot(Fake("rollout", counted(log, "a", 3)), "a"), slot(Fake("rewards", counted(log, "b", 2)), "b")]))
    assert log == ["a0", "b0", "a1", "b1", "a2"]


def test_a_share_of_two_takes_two_turns_a_round() -> None:
    """Shares weigh the turns."""
    log: list[str] = []
    fast = slot(Fake("rollout", counted(log, "a", 4)), "a", share=2)
    run(table([fast, slot(Fake("rewards", counted(log, "b", 3)), "b")]))
    assert log == ["a0", "a1", "b0", "a2", "a3", "b1", "b2"]


def test_a_share_of_a_half_takes_every_second_turn() -> None:
    """Shares below one save up."""
    log: list[str] = []
    slow = slot(Fake("rollout", counted(log, "a", 2)), "a", share=0.5)
    run(table([slow, slot(Fake("rewards", counted(log, "b", 4)), "b")]))
    assert log == ["b0", "a0", "b1", "b2", "a1", "b3"]


def test_a_lane_that_waited_has_saved_up_no_turns() -> None:
    """After a wait a lane gets its share a round, not all the turns that it could not use."""
    log: list[str] = []

    def late(**_: Any) -> Generator[Tick, None, Any]:
        for _i in range(20):
            yield WAITING
        yield from counted(log, "a", 8)()
        return Value()

    run(table([slot(Fake("rollout", late), "a", share=2), slot(Fake("rewards", counted(log, "b", 24)), "b")]))
    assert log[log.index("a0") :][:6] == ["a0", "a1", "b20", "a2", "a3", "b21"]


@both
def test_slots_of_one_lane_run_one_after_another(executor: ExecutorName) -> None:
    """The second slot of a lane begins when the first has ended."""
    log: list[str] = []
    first, second = (Fake(field, counted(log, field, 2)) for field in ("rollout", "rewards"))
    run(table([slot(first, "a"), slot(second, "a")]), executor)
    assert log == ["rollout0", "rollout1", "rewards0", "rewards1"]


@both
def test_a_stage_begins_when_every_lane_of_the_last_has_ended(executor: ExecutorName) -> None:
    """Between stages there is a barrier, even for a lane with nothing to do."""
    log: list[str] = []
    long, short = Fake("rollout", counted(log, "long", 5)), Fake("rewards", counted(log, "short", 1))
    after = Fake("suffix", counted(log, "after", 1))
    run(table([slot(long, "a"), slot(short, "b")], [slot(after, "b")]), executor)
    assert log[-1] == "after0"
    assert len(log) == 7


def test_a_streamed_part_is_read_while_others_are_made() -> None:
    """A reader on another lane does not wait for the whole value."""
    log: list[str] = []
    maker = Fake("rollout", making(log, "made", [1, 2, 3]))
    reader = Fake("rewards", reading(log, "read", "rollout"), needs=["rollout"])
    run(table([slot(maker, "a"), slot(reader, "b", streams=["rollout"])]))
    assert log == ["made1", "read1", "made2", "read2", "made3", "read3"]


@both
def test_a_chain_of_streams_passes_every_part(executor: ExecutorName) -> None:
    """Three lanes, each reading the one before while it works, lose nothing."""
    parts = tuple(range(20))
    maker = Fake("rollout", making([], "", parts))
    middle = Fake("rewards", reading([], "", "rollout"), needs=["rollout"])
    last = Fake("suffix", reading([], "", "rewards"), needs=["rewards"])
    slots = [slot(last, "c", streams=["rewards"]), slot(middle, "b", streams=["rollout"]), slot(maker, "a")]
    assert run(table(slots), executor)[0].suffix == Value(parts)


@pytest.mark.parametrize("share", [1.0, 2.0, 0.5])
def test_lanes_that_all_wait_for_each_other_are_an_error(share: float) -> None:
    """A timetable that can never end says so and names who waits."""

    def stuck(**_: Any) -> Generator[Tick, None, Any]:
        while True:
            yield WAITING

    slots = [slot(Fake(field, stuck), lane, share=share) for field, lane in (("rollout", "a"), ("rewards", "b"))]
    with pytest.raises(RuntimeError, match=r"every lane waits for another \(a: rollout phase, b: rewards phase\)"):
        run(table(slots))


@both
def test_an_error_keeps_what_was_finished(executor: ExecutorName) -> None:
    """The board holds the values of the stages before, and the error says whose it was."""
    on = board()
    bad = Fake("rewards", failing(ZeroDivisionError("no")))
    with pytest.raises(ZeroDivisionError, match="no") as caught:
        run(table([slot(Fake("rollout"), "a")], [slot(bad, "a")]), executor, on)
    assert on.step.filled[-1] == "rollout"
    assert "in phase 'rewards phase' of step 0" in caught.value.__notes__[0]


@both
@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_whatever_stops_a_stage_closes_the_other_phases(executor: ExecutorName, error: BaseException) -> None:
    """A phase that was under way gets to release what it holds."""
    events: list[str] = []
    started = threading.Event()

    def holding(**_: Any) -> Generator[Tick, None, Any]:
        try:
            while True:
                started.set()
                yield "holding"
        finally:
            events.append("released")

    def stopping(**_: Any) -> Generator[Tick, None, Any]:
        yield "wait" if started.wait(5) else "late"
        raise error

    slots = [slot(Fake("rollout", holding), "a"), slot(Fake("rewards", stopping), "b")]
    with pytest.raises(type(error)):
        run(table(slots), executor)
    assert events == ["released"]


@both
def test_a_phase_that_ends_whole_when_it_is_stopped_has_finished(executor: ExecutorName) -> None:
    """Its value is on the board, and the error is still the error."""
    started = threading.Event()

    def whole(**_: Any) -> Generator[Tick, None, Any]:
        try:
            while True:
                started.set()
                yield "more"
        except GeneratorExit:
            return Value("whole")

    def stopping(**_: Any) -> Generator[Tick, None, Any]:
        yield "wait" if started.wait(5) else "late"
        raise ValueError("x")

    on = board()
    slots = [slot(Fake("rollout", whole), "a"), slot(Fake("rewards", stopping), "b")]
    with pytest.raises(ValueError, match="x"):
        run(table(slots), executor, on)
    assert (on.step.rollout, on.step.rewards) == (Value("whole"), None)


def test_threads_run_lanes_at_the_same_time() -> None:
    """Two lanes can meet inside their ticks, which no single thread could bring about."""
    meeting = threading.Barrier(2, timeout=5)

    def met(**_: Any) -> Generator[Tick, None, Any]:
        meeting.wait()
        yield "met"
        return Value(threading.current_thread().name)

    step, _ = run(table([slot(Fake("rollout", met), "a"), slot(Fake("rewards", met), "b")]), "threads")
    assert (step.rollout, step.rewards) == (Value("rollplex-a"), Value("rollplex-b"))


@both
@pytest.mark.parametrize("ticks", [1, 0], ids=["tick", "end"])
def test_a_phase_that_leaves_autograd_off_is_refused(executor: ExecutorName, ticks: int) -> None:
    """The mode belongs to the thread: whoever runs next would silently make no gradient."""

    def careless(**_: Any) -> Generator[Tick, None, Any]:
        torch.set_grad_enabled(False)
        for _i in range(ticks):
            yield "careless"
        return Value()

    try:
        with pytest.raises(RuntimeError, match=r"'rollout phase': it ended a tick with autograd switched off"):
            run(table([slot(Fake("rollout", careless), "a")]), executor)
        assert torch.is_grad_enabled(), "the next step finds autograd on"
    finally:
        torch.set_grad_enabled(True)


def test_a_phase_may_switch_autograd_off_within_a_tick() -> None:
    """Only what outlives a tick is refused."""

    def careful(**_: Any) -> Generator[Tick, None, Any]:
        with torch.no_grad():
            made = torch.ones(1)
        yield "careful"
        return Value(made)

    assert run(table([slot(Fake("rollout", careful), "a")]))[0].rollout is not None


@both
def test_the_trace_has_every_tick_and_its_place(executor: ExecutorName) -> None:
    """Stage, lane, phase and label of each tick, the last one called end; waiting is left out."""
    maker = Fake("rollout", making([], "", [1, 2]))
    reader = Fake("rewards", reading([], "", "rollout"), needs=["rollout"])
    _, trace = run(table([slot(maker, "a"), slot(reader, "b", streams=["rollout"])]), executor)
    assert {(t.stage, t.lane, t.phase) for t in trace.ticks} == {
        ("P0", "a", "rollout phase"),
        ("P0", "b", "rewards phase"),
    }
    for lane in "ab":
        assert [t.label for t in trace.ticks if t.lane == lane] == ["part 1", "part 2", "end"]
    assert all(t.end_s >= t.start_s for t in trace.ticks)
    assert trace.schedules == {0: "Fake"}


def test_ticks_of_an_attempt_that_failed_do_not_count_in_the_next() -> None:
    """A step that is run again has one timeline: its own."""
    from rollplex.execute import execute
    from rollplex.recorder import Recorder
    from rollplex.trace import Trace

    attempts = iter([failing(ValueError("once"), after=3), counted([], "a", 1)])
    phase = Fake("rollout", lambda **_: next(attempts)())
    recorder = Recorder(Trace(), [phase], torch.device("cpu"))
    with pytest.raises(ValueError, match="once"):
        execute(table([slot(phase, "a")]), board(), recorder)
    assert len(recorder.trace.ticks) == 3
    execute(table([slot(phase, "a")]), board(), recorder)
    assert [t.label for t in recorder.trace.ticks] == ["tick 0", "end"]

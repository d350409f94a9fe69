import pytest
from views import fakes

from rollplex.trace import Tick, Trace
from rollplex.views.chart import chart


def test_ticks_of_one_phase_in_a_row_are_one_bar() -> None:
    rollout = chart(fakes.trace(0, num_tokens=500)).rows[0]
    assert [(bar.phase, bar.num_ticks) for bar in rollout.bars] == [("decode", 500), ("idle", 0)]


def test_turns_are_kept_apart() -> None:
    phases = [bar.phase for bar in chart(fakes.turns()).rows[0].bars]
    assert phases == ["decode", "idle"] * 4


def test_thousands_of_turns_stay_within_the_cap_and_keep_their_work() -> None:
    ticks = [Tick(0, "P1", "ab"[i % 2], "cd"[i % 2], str(i), float(i), i + 1.0) for i in range(4000)]
    drawn = chart(Trace(ticks=ticks, schedules={0: "S"}), max_bars=100)
    assert sum(len(row.bars) for row in drawn.rows) <= 100
    assert [row.busy_s for row in drawn.rows] == [2000.0, 2000.0]


def test_two_phases_alternating_on_one_lane_stay_within_the_cap() -> None:
    ticks = [Tick(0, "P1", "a", "cd"[i % 2], str(i), float(i), i + 1.0) for i in range(4000)]
    assert len(chart(Trace(ticks=ticks, schedules={0: "S"}), max_bars=50).rows[0].bars) <= 50


def test_work_and_pauses_fill_the_lane_exactly() -> None:
    drawn = chart(fakes.trace(0))
    for row in drawn.rows:
        ends = [0.0, *(bar.end_s for bar in row.bars)]
        assert [bar.start_s for bar in row.bars] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(drawn.span_s)


def test_the_last_step_is_drawn_unless_one_is_named() -> None:
    assert chart(fakes.trace(0, 1, 2)).steps == (2,)
    assert chart(fakes.trace(0, 1, 2), [1]).steps == (1,)


def test_overlap_is_told_as_the_clock_saw_it() -> None:
    assert "42%" in chart(fakes.trace(0)).overlap
    assert "took turns" in chart(fakes.turns()).overlap
    on_cpu = fakes.trace(0)
    on_cpu.device = "cpu (2 cores)"
    assert "not a GPU's overlap" in chart(on_cpu).overlap
    on_cpu.kind = "predicted"
    assert "GPU" not in chart(on_cpu).overlap


@pytest.mark.parametrize(("trace", "found"), [(Trace(), "no ticks"), (fakes.trace(0, 1), r"steps \[0, 1\]")])
def test_a_step_without_ticks_is_an_error_that_says_which_there_are(trace: Trace, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        chart(trace, [7])

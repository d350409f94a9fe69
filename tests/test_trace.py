import json
from pathlib import Path

import pytest
from views import fakes

from rollplex.trace import Trace


def test_selecting_keeps_the_step_alone() -> None:
    part = fakes.trace(0, 1, 2).select(1)
    assert {t.step for t in part.ticks} == {s.step for s in part.samples} == set(part.schedules) == {1}
    assert part.device == "NVIDIA H200"


def test_a_step_takes_from_its_first_start_to_its_last_end() -> None:
    assert fakes.trace(0, 1).step_s(1) == pytest.approx(1.9)


def test_busy_time_leaves_waiting_out() -> None:
    busy = fakes.turns().busy_s(0)
    assert busy == {"decode": pytest.approx(0.4), "prefix(policy)": pytest.approx(0.4)}


def test_a_step_that_was_not_traced_is_named() -> None:
    with pytest.raises(ValueError, match=r"step 5.*\[0, 1\]"):
        fakes.trace(0, 1).step_s(5)


def test_the_peak_is_of_the_sum_and_not_the_sum_of_peaks() -> None:
    assert fakes.trace(0).peak_bytes() == (8 + 3 + 2) * 2**20
    assert Trace().peak_bytes() == 0


def test_the_frame_has_a_row_a_tick() -> None:
    trace = fakes.trace(0)
    frame = trace.frame()
    assert len(frame) == len(trace.ticks)
    assert frame.groupby("phase")["duration_s"].sum()["decode"] == pytest.approx(1.0)
    assert len(Trace().frame()) == 0


def test_the_chrome_file_has_an_event_a_tick_and_a_thread_a_lane(tmp_path: Path) -> None:
    trace = fakes.trace(0)
    written = json.loads(trace.to_chrome(tmp_path / "trace.json").read_text())
    by_kind: dict[str, list[dict[str, object]]] = {}
    for event in written["traceEvents"]:
        by_kind.setdefault(event["ph"], []).append(event)
    assert len(by_kind["X"]) == len(trace.ticks)
    assert len(by_kind["C"]) == len(trace.samples)
    names = {e["args"]["name"] for e in by_kind["M"] if e["name"] == "thread_name"}  # type: ignore[index]
    assert names == {"rollout", "train"}
    assert sum(float(str(e["dur"])) for e in by_kind["X"] if e["cat"] == "decode") == pytest.approx(1e6)

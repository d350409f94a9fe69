import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from views import fakes

from rollplex.log import JsonLines, log
from rollplex.step import Step
from rollplex.steps import Steps
from rollplex.trace import Trace


class Memo:
    def __init__(self, fails_at: int | None = None, fails_to_close: bool = False) -> None:
        self.seen: list[int] = []
        self.closed = 0
        self.fails_at = fails_at
        self.fails_to_close = fails_to_close

    def write(self, step: Step, metrics: Mapping[str, float], trace: Trace) -> None:
        if step.index == self.fails_at:
            raise OSError("disk full")
        assert metrics["weights/version"] == step.index + 1
        self.seen.append(step.index)

    def close(self) -> None:
        self.closed += 1
        if self.fails_to_close:
            raise OSError("gone")


def interrupt(steps: Steps) -> None:
    for _ in steps:
        raise KeyboardInterrupt


def make_run(num: int = 3) -> fakes.FakeRun:
    return fakes.FakeRun([fakes.step(i) for i in range(num)], fakes.trace(*range(num)))


def test_steps_pass_through_untouched_and_each_sink_gets_each_once() -> None:
    run, first, second = make_run(), Memo(), Memo()
    assert list(log(run.steps(), first, second)) == run.made
    assert first.seen == second.seen == [0, 1, 2]
    assert first.closed == second.closed == 1


def test_a_step_is_written_before_the_loop_sees_it() -> None:
    sink = Memo()
    for step in log(make_run().steps(), sink):
        assert sink.seen[-1] == step.index


def test_a_break_closes_the_sinks_and_ends_the_run_even_if_the_steps_are_kept() -> None:
    run, sink = make_run(), Memo()
    kept = log(run.steps(), sink)
    for _ in kept:
        break
    assert sink.seen == [0]
    assert sink.closed == 1


def test_an_error_in_the_loop_closes_the_sinks() -> None:
    sink = Memo()
    with pytest.raises(KeyboardInterrupt):
        interrupt(log(make_run().steps(), sink))
    assert sink.closed == 1


def test_a_failing_sink_is_named_and_dropped_and_the_others_go_on() -> None:
    bad, good = Memo(fails_at=1), Memo()
    with pytest.warns(RuntimeWarning, match=r"logging step 1 to .*Memo.*disk full.*training goes on"):
        assert len(list(log(make_run().steps(), bad, good))) == 3
    assert (bad.seen, bad.closed) == ([0], 1)
    assert good.seen == [0, 1, 2]


def test_a_sink_that_cannot_close_does_not_keep_the_next_one_open() -> None:
    good = Memo()
    with pytest.warns(RuntimeWarning, match="closing"):
        list(log(make_run().steps(), Memo(fails_to_close=True), good))
    assert good.closed == 1


def test_lines_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    for step in log(make_run().steps(), JsonLines(path)):
        assert len(path.read_text().splitlines()) == step.index + 1


def test_lines_are_strict_json_with_the_step_and_its_schedule(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    diverged = replace(fakes.step(1), suffix=fakes.suffix(1, [[1.0, 0.0]], loss=math.inf))
    list(log(fakes.FakeRun([fakes.step(0), diverged], fakes.trace(0, 1)).steps(), JsonLines(path)))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    first, second = (json.loads(text, parse_constant=refuse) for text in path.read_text().splitlines())
    assert (first["step"], first["schedule"], first["loss"]) == (0, "Rollplex", 0.25)
    assert (second["step"], second["loss"]) == (1, None)


def test_a_second_loop_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):
        list(log(make_run().steps(), JsonLines(path)))
    assert len(path.read_text().splitlines()) == 6
    list(log(make_run().steps(), JsonLines(path, append=False)))
    assert len(path.read_text().splitlines()) == 3

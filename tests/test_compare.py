"""Comparing schedules: the same steps from the same state, and the state put back."""

from __future__ import annotations

import pytest
import torch
from tiny_policy import checksum, moved, phases, task, tiny

from rollplex.compare import Comparison, compare
from rollplex.policy import Policy
from rollplex.rewards import RewardError
from rollplex.run import Run
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed


def make(policy: Policy) -> Run:
    return Run(task(), phases(policy), prompts=2)


@pytest.fixture(scope="module")
def made() -> Comparison:
    return make(tiny()).compare(Rollplex(), OnePrefill(), steps=2)


def test_the_runs_own_schedule_comes_first(made: Comparison) -> None:
    """It is what the others are held against, whether named or not."""
    assert list(made.traces) == ["Serial", "Rollplex", "OnePrefill"]
    assert list(make(tiny()).compare(Rollplex(), Serial(), steps=1).traces) == ["Rollplex", "Serial"]


def test_schedules_end_with_the_same_weights(made: Comparison) -> None:
    """The table says how far apart they are."""
    assert made.difference["Serial"] == made.difference["Rollplex"] == 0
    assert made.difference["OnePrefill"] < 1e-9


def test_every_schedule_is_traced_from_the_same_step(made: Comparison) -> None:
    """As many steps as asked, from where the run is."""
    assert all(trace.steps() == [0, 1] for trace in made.traces.values())
    assert {trace.schedules[1] for trace in made.traces.values()} == set(made.traces)


def test_the_run_is_put_back_as_if_nothing_had_happened() -> None:
    """Weights, version, optimizer, counter and trace: what follows is what would have followed."""
    policies = tiny(), tiny()
    runs = [make(policy) for policy in policies]
    for run in runs:
        run.step()
    before = policies[0].snapshot()
    compare(runs[0], Rollplex(), Streamed(), steps=2)
    assert moved(policies[0], before) == 0
    assert (policies[0].version, runs[0].next_index, runs[0].trace.steps()) == (1, 1, [0])
    for run in runs:
        run.step()
    assert moved(policies[0], before) > 0
    assert moved(policies[0], policies[1].snapshot()) == 0


def test_the_run_is_put_back_after_an_error_too() -> None:
    """A reward that fails in the second schedule costs the comparison, not the run."""
    calls = []

    def failing(completion_ids: list[list[int]], **_: object) -> list[float]:
        calls.append(1)
        if len(calls) > 3:
            raise ValueError("broken")
        return checksum(completion_ids)

    policy = tiny()
    before = policy.snapshot()
    run = Run(task(), phases(policy, rewards=[failing]), prompts=2)
    with pytest.raises(RewardError, match="broken"):
        compare(run, Serial(), Rollplex(), steps=1)
    assert moved(policy, before) == 0
    assert policy.version == 0


def test_two_settings_of_one_schedule_are_two_rows() -> None:
    """They share a class name, and neither hides the other."""
    made = compare(make(tiny()), Streamed(), Streamed(handoff=True), steps=1)
    assert len(made.traces) == len(made.frame()) == 2


def test_a_schedule_named_twice_is_refused() -> None:
    """One row would silently stand for both."""
    with pytest.raises(ValueError, match="twice"):
        compare(make(tiny()), Serial(), Serial(), steps=1)


def test_another_outcome_is_seen() -> None:
    """The control: with one shared generator schedules draw in another order, and the table says so."""
    generator = torch.Generator()
    policy = tiny()

    def noisy(completion_ids: list[list[int]], **_: object) -> list[float]:
        return torch.rand(len(completion_ids), generator=generator).tolist()

    run = Run(task(), phases(policy, rewards=[noisy]), prompts=2)
    assert compare(run, Serial(), Rollplex(), steps=1).difference["Rollplex"] > 0


def test_the_table_has_times_and_phases(made: Comparison) -> None:
    """One row a schedule: the step, its parts, the ratio to the first, the difference."""
    frame = made.frame()
    assert list(frame.index) == list(made.traces)
    assert {"step_s", "times_serial", "decode_s", "prefix_s", "suffix_s", "update_s"} <= set(frame.columns)
    assert frame.loc["Serial", "times_serial"] == 1
    assert (frame["step_s"] > frame["decode_s"]).all()
    assert "Rollplex" in repr(made)
    assert "<table" in made._repr_html_()


def test_the_timelines_are_of_the_last_step(made: Comparison) -> None:
    """One figure with a row group a schedule."""
    assert len(made.timelines().data) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("schedules", "steps"), [((), 1), ((Serial(),), 0)], ids=["no schedule", "no step"])
def test_nothing_to_compare_is_refused(schedules: tuple[Serial, ...], steps: int) -> None:
    """At least one of each."""
    with pytest.raises(ValueError, match="give at least one of each"):
        compare(make(tiny()), *schedules, steps=steps)

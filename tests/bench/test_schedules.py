"""The bench of schedules: a row each, ratios within the run, and the floor beside it. No time is held to anything."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_workloads import SMALL, WORKLOADS

from rollplex.bench import schedules
from rollplex.bench.floor import step_operations
from rollplex.bench.phases import phases
from rollplex.policy import Policy
from rollplex.run import Run

PARTS = ("decode_s", "prefix_s", "suffix_s", "update_s")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "WORKLOADS", WORKLOADS)
        return schedules.bench(rounds=2)


def test_every_schedule_has_a_row_in_every_workload(found: dict[str, Any]) -> None:
    """Under the names of the JSON."""
    assert list(found["workloads"]) == ["small"]
    assert list(found["workloads"]["small"]) == list(schedules.SCHEDULES)
    assert found["matrix_flops_per_s"] > 0


def test_the_parts_of_a_step_are_within_it(found: dict[str, Any]) -> None:
    """One host thread serves the lanes, so the parts cannot add up to more than the step."""
    for row in found["workloads"]["small"].values():
        assert all(row[part] > 0 for part in PARTS)
        assert row["ratio_to_serial"] > 0
        assert row["floor_share"] > 0


def test_serial_is_one_times_itself_and_hides_nothing(found: dict[str, Any]) -> None:
    """Ratios are to the same round's Serial."""
    serial = found["workloads"]["small"]["Serial"]
    assert serial["ratio_to_serial"] == 1.0
    assert serial["hidden_prefix_s"] == 0.0


def test_the_floor_is_that_of_the_step_that_was_run() -> None:
    """Its own prompts and lengths, with the reference's forward."""
    run = Run(SMALL.task, phases(SMALL, Policy.tiny()), prompts=2)
    step = run.step()
    expected = step_operations(run.policy.model, step.prompts.prompts, SMALL.full_lengths(), reference=True)
    assert schedules._operations(run, step) == expected


def test_every_response_is_as_long_as_allowed() -> None:
    """So that every schedule and every peer does the same work."""
    step = Run(SMALL.task, phases(SMALL, Policy.tiny()), prompts=2).step()
    assert step.rollout is not None
    assert step.rollout.num_tokens == SMALL.samples * SMALL.max_new_tokens

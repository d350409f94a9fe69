"""The bench of the tick machinery: empty ticks, as many as a real step has. No time is held to anything."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_workloads import SMALL

from rollplex.bench import overhead
from rollplex.bench.phases import phases
from rollplex.policy import Policy
from rollplex.run import Run
from rollplex.schedules import Rollplex


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(overhead, "WORKLOADS", {"default": SMALL})
    return overhead.bench(steps=1)


def test_the_share_is_that_of_the_machinery(found: dict[str, Any]) -> None:
    """Of a real step's time."""
    assert found["overhead_share"] == pytest.approx(found["machinery_s"] / found["step_s"])
    assert found["machinery_s"] > 0


def test_as_many_ticks_are_empty_as_a_real_step_has(found: dict[str, Any]) -> None:
    """Decode's tokens, prefixes' layers, and all the others."""
    run = Run(SMALL.task, phases(SMALL, Policy.tiny()), Rollplex(), prompts=2)
    run.step()
    assert found["ticks"] == len(run.trace.ticks)


def test_an_empty_phase_stands_where_the_real_one_does() -> None:
    """Its name, field and resources, and ticks without work."""
    policy = Policy.tiny()
    for phase in phases(SMALL, policy):
        empty = overhead.Empty(phase, 3)
        assert (empty.name, empty.writes) == (phase.name, phase.writes)
        assert [r.name for r in (*empty.reads, *empty.mutates)] == [r.name for r in (*phase.reads, *phase.mutates)]
        assert list(empty.run()) == ["empty"] * 3

"""Memory samples: what is there before the first tick, changes alone, and the fullest moment between two looks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from memory.test_owners import Reader
from views import fakes

from rollplex.memory.arena import Arena
from rollplex.recorder import Recorder
from rollplex.resource import Resource
from rollplex.trace import Trace

MIB = 2**20
STEP = fakes.step(0)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.host(budget_bytes=8 * MIB)
    yield made
    made.close()


def recorder(arena: Arena | None = None) -> Recorder:
    phases = [Reader(Resource("policy.weights", (torch.zeros(4),)))]
    return Recorder(Trace(), phases, torch.device("cpu"), arena=arena)


def weights(made: Recorder) -> list[int]:
    return [sample.owners.get("engine.kv", 0) for sample in made.trace.samples]


def test_a_step_begins_with_what_is_there() -> None:
    made = recorder()
    made.begin(STEP, "Serial")
    assert [(s.step, s.owners["policy.weights"]) for s in made.trace.samples] == [(0, 16)]


def test_what_did_not_change_is_not_said_again() -> None:
    made = recorder()
    made.begin(STEP, "Serial")
    made.sample(STEP)
    num = len(made.trace.samples)
    made.sample(STEP)
    assert len(made.trace.samples) == num


def test_the_fullest_moment_between_two_looks_is_told(arena: Arena) -> None:
    made = recorder(arena)
    made.sample(STEP)
    for size in (2 * MIB, 5 * MIB, 3 * MIB):
        arena.charge("engine.kv", size).free()
    made.sample(STEP)
    assert weights(made) == [0, 5 * MIB, 0]
    times = [sample.time_s for sample in made.trace.samples]
    assert times == sorted(times)


def test_what_grew_and_stayed_is_one_sample(arena: Arena) -> None:
    made = recorder(arena)
    made.sample(STEP)
    charge = arena.charge("engine.kv", 2 * MIB)
    made.sample(STEP)
    assert weights(made) == [0, 2 * MIB]
    charge.free()


def test_the_budget_is_the_arenas_that_is_used(arena: Arena) -> None:
    made = recorder()
    assert made.trace.budget_bytes is None
    made.use(arena)
    assert made.trace.budget_bytes == 8 * MIB
    made.use(None)
    assert made.trace.budget_bytes is None


def test_a_step_that_is_begun_again_forgets_its_samples(arena: Arena) -> None:
    made = recorder(arena)
    made.begin(STEP, "Serial")
    charge = arena.charge("engine.kv", 2 * MIB)
    made.sample(STEP)
    charge.free()
    made.begin(STEP, "Serial")
    assert weights(made)[-1] == 0
    assert {sample.step for sample in made.trace.samples} == {0}

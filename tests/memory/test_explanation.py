"""An explanation offers what contracts allow, and says truly whether it is enough."""

import pytest

from rollplex import memory
from rollplex.memory.arena import Arena, OutOfDeviceMemory
from rollplex.memory.explanation import Explanation, explain

MIB = 2**20


def refused(held: dict[str, int], wanted: int, budget: int) -> Explanation:
    """Explain the error of a real arena that is asked for too much."""
    arena = Arena.host(budget_bytes=budget * MIB)
    for owner, size in held.items():
        arena.region(owner, size * MIB)
    with pytest.raises(OutOfDeviceMemory) as error:
        arena.region("engine.kv", wanted * MIB)
    arena.close()
    return explain(error.value)


def test_what_is_enough_by_itself_would_have_made_room() -> None:
    told = refused({"policy.optimizer": 5, "reference.weights": 2, "policy.boundary": 1}, wanted=3, budget=8)
    assert told.missing_bytes == 3 * MIB
    assert [(o.owner, o.away, o.enough) for o in told.options] == [
        ("policy.optimizer", "host", True),
        ("reference.weights", "host", False),
    ]


def test_boundaries_and_strangers_are_never_offered() -> None:
    told = refused({"policy.boundary": 5, "somebody": 2}, wanted=2, budget=8)
    assert told.options == ()
    assert "None of it may be elsewhere" in str(told)


def test_the_fewest_that_are_enough_together() -> None:
    told = refused({"policy.optimizer": 4, "reference.weights": 3, "policy.tape": 1}, wanted=6, budget=8)
    assert told.fewest is not None
    assert [option.owner for option in told.fewest] == ["policy.optimizer", "reference.weights"]
    assert "Enough together: policy.optimizer, reference.weights." in str(told)


def test_too_little_to_offer_is_said() -> None:
    told = refused({"policy.boundary": 6, "policy.tape": 1}, wanted=8, budget=8)
    assert told.fewest is None
    assert "All of that together is not enough" in str(told)


def test_the_folders_public_names_are_what_they_say() -> None:
    assert memory.explain is explain
    assert memory.OutOfDeviceMemory is OutOfDeviceMemory
    assert {name: getattr(memory, name) for name in memory.__all__}.keys() == set(memory.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Pool'; it has Arena"):
        _ = memory.Pool

"""An explanation offers what contracts allow, and says truly whether it is enough."""

import pytest

from rollplex import memory
from rollplex.memory.arena import Arena, OutOfDeviceMemory
from rollplex.memory.contracts import contract
from rollplex.memory.explanation import HOW, Explanation, explain

MIB = 2**20


def refused(held: dict[str, int], wanted: int, budget: int, owner: str = "engine.kv") -> Explanation:
    """Explain the error of a real arena that is asked for too much."""
    arena = Arena.host(budget_bytes=budget * MIB)
    for name, size in held.items():
        arena.region(name, size * MIB)
    with pytest.raises(OutOfDeviceMemory) as error:
        arena.region(owner, wanted * MIB)
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


def test_what_should_have_been_freed_before_is_offered_and_only_then() -> None:
    """The rollout's KV while gradients come; but not while it is decoded."""
    held = {"rollout.kv": 4, "policy_prefix.boundary": 2}
    late = refused(held, wanted=4, budget=8, owner="policy.gradients")
    assert [(o.owner, o.away, o.enough) for o in late.options] == [("engine.kv", "freed", True)]
    later = refused(held, wanted=4, budget=8, owner="policy.optimizer")
    assert {o.owner for o in later.options} == {"engine.kv", "policy.boundary", "policy.optimizer"}
    assert refused(held, wanted=4, budget=8, owner="reference.boundary").options == ()


def test_what_may_come_in_chunks_need_not_come_whole() -> None:
    told = refused({"policy.weights": 6}, wanted=4, budget=8, owner="optimizer.state")
    mine = next(option for option in told.options if option.owner == "policy.optimizer")
    assert (mine.nbytes, mine.away, mine.enough) == (4 * MIB, "host", True)
    assert "policy.optimizer: host, perhaps enough by itself" in str(told), "a few chunks come all the same"
    assert "perhaps enough by itself" in told._repr_html_()
    assert "chunk_bytes" in mine.how
    whole = refused({"policy.weights": 6}, wanted=4, budget=8, owner="policy.gradients")
    assert all(option.owner != "policy.gradients" for option in whole.options)


def test_parts_of_an_object_are_one_option() -> None:
    held = {"policy_prefix.boundary": 2, "policy_prefix.gradients": 1, "policy.weights": 5}
    told = refused(held, wanted=2, budget=8, owner="policy.optimizer")
    assert {o.owner: o.nbytes // MIB for o in told.options}["policy.boundary"] == 3


@pytest.mark.parametrize("owner", HOW)
def test_what_can_be_had_is_what_a_contract_allows(owner: str) -> None:
    told = refused({owner: 4}, wanted=4, budget=4, owner="somebody")
    assert [o.away for o in told.options] == [away for away in contract(owner).away if away != "freed"][:1]


def test_what_nothing_here_moves_is_not_offered() -> None:
    """The weights' snapshot may be rebuilt by its contract; no mechanism of the workbench drops it."""
    assert contract("policy.weights").away == ("rebuilt",)
    assert refused({"policy.weights": 4}, wanted=4, budget=4, owner="somebody").options == ()


def test_it_shows_itself_with_names_escaped() -> None:
    html = refused({"policy.optimizer": 4, "reference.weights": 3, "a<b>": 1}, 6, 8)._repr_html_()
    assert "a&lt;b&gt;" in html
    assert "a<b>" not in html
    assert "enough together: policy.optimizer, reference.weights" in html
    alone = refused({"policy.boundary": 4}, 6, 8)._repr_html_()
    assert "a smaller batch is needed" in alone


def test_the_folders_public_names_are_what_they_say() -> None:
    assert memory.explain is explain
    assert memory.OutOfDeviceMemory is OutOfDeviceMemory
    assert {name: getattr(memory, name) for name in memory.__all__}.keys() == set(memory.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Pool'; it has Arena"):
        _ = memory.Pool

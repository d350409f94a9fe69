"""The step in the making: what slots may take from it, and who hears of parts."""

import pytest
from fake_phases import Fake, Value, board, slot

from rollplex.feed import Feed, Ready
from rollplex.schedule import Stage

MAKER = slot(Fake("rollout"), "a")
STREAMING = slot(Fake("rewards", needs=["prompts", "rollout"]), "b", streams=["rollout"])


def test_a_streamed_field_of_the_stage_is_a_feed() -> None:
    """The parts of one slot reach the other; other fields are the step's own values."""
    on = board()
    on.open(Stage(name="P1", slots=(MAKER, STREAMING)))
    taken = on.inputs(STREAMING)
    on.part(MAKER, Ready(3, "three"))
    on.fill(MAKER, Value((3,)))
    assert taken["prompts"] is on.step.prompts
    assert isinstance(taken["rollout"], Feed)
    assert list(taken["rollout"].parts()) == [3]


def test_a_streamed_field_of_an_earlier_stage_is_the_finished_value() -> None:
    """Where nothing is being made there is nothing to wait for."""
    on = board()
    on.open(Stage(name="P1", slots=(MAKER,)))
    on.fill(MAKER, Value((1,)))
    on.open(Stage(name="P2", slots=(STREAMING,)))
    assert on.inputs(STREAMING)["rollout"] == Value((1,))


def test_a_part_that_nobody_streams_goes_nowhere() -> None:
    """Announcing a part without a listener is not an error."""
    on = board()
    on.open(Stage(name="P1", slots=(MAKER,)))
    on.part(MAKER, Ready(1, "one"))
    assert on.step.rollout is None


def test_a_field_is_filled_once() -> None:
    """A second value is refused, and the first one stays."""
    on = board()
    on.fill(MAKER, Value(1))
    with pytest.raises(ValueError, match="'rollout', but it is already filled"):
        on.fill(MAKER, Value(2))
    assert on.step.rollout == Value(1)

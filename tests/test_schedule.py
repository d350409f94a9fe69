"""Timetables: what the check lets through and what it refuses."""

from __future__ import annotations

import pytest
import torch
from fake_phases import Fake, slot, table, weights

from rollplex.schedule import ScheduleError, Timetable

DECODE = Fake("rollout", needs=["prompts"])
REWARD = Fake("rewards", needs=["prompts", "rollout"])
SUFFIX = Fake("suffix", needs=["rollout", "rewards"], may=["reference_prefix"])


def refuses(timetable: Timetable, match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        timetable.check()


def test_inputs_may_come_from_an_earlier_stage() -> None:
    """Stages are ordered by their barriers."""
    table([slot(DECODE, "a")], [slot(REWARD, "b")]).check()


def test_inputs_may_come_from_earlier_on_the_lane() -> None:
    """Slots of one lane are ordered too."""
    table([slot(DECODE, "a"), slot(REWARD, "a")]).check()


def test_inputs_from_another_lane_of_the_stage_are_refused() -> None:
    """Lanes of a stage run at the same time: what one reads, another has not written yet."""
    refuses(table([slot(DECODE, "a"), slot(REWARD, "b")]), "rewards phase reads 'rollout', which is not written before")


def test_inputs_from_later_on_the_lane_are_refused() -> None:
    """Order on a lane is order in time."""
    refuses(table([slot(REWARD, "a"), slot(DECODE, "a")]), "reads 'rollout'")


def test_inputs_that_nobody_writes_are_refused() -> None:
    """A required field has to be made by someone."""
    refuses(table([slot(REWARD, "a")]), "reads 'rollout'")


def test_inputs_may_be_streamed_from_another_lane() -> None:
    """A streamed field needs no barrier."""
    table([slot(DECODE, "a"), slot(REWARD, "b", streams=["rollout"])]).check()


def test_a_required_input_that_is_not_handed_over_is_refused() -> None:
    """The message names what is lacking."""
    bare = type(slot(REWARD, "a"))(phase=REWARD, lane="a", takes=("prompts",))
    refuses(table([slot(DECODE, "a")], [bare]), r"lacks \['rollout'\]")


def test_an_input_that_the_phase_does_not_take_is_refused() -> None:
    """The message names what is given in vain."""
    wrong = type(slot(DECODE, "a"))(phase=DECODE, lane="a", takes=("prompts", "version"))
    refuses(table([wrong]), r"given \['version'\]")


def test_an_optional_input_may_be_left_out_or_handed_over() -> None:
    """Whether the schedule uses it is its own choice, but then it has to exist."""
    rest = [[slot(DECODE, "a")], [slot(REWARD, "a")]]
    without = type(slot(SUFFIX, "a"))(phase=SUFFIX, lane="a", takes=("rollout", "rewards"))
    table(*rest, [without]).check()
    table(*rest, [slot(Fake("reference_prefix"), "a"), slot(SUFFIX, "a")]).check()
    refuses(table(*rest, [slot(SUFFIX, "a")]), "reads 'reference_prefix'")


@pytest.mark.parametrize("stages", [[["a", "b"]], [["a"], ["b"]]], ids=["one stage", "two stages"])
def test_a_field_written_twice_is_refused(stages: list[list[str]]) -> None:
    """Two phases that fill one field would overwrite each other."""
    refuses(table(*[[slot(Fake("rollout"), lane) for lane in lanes] for lanes in stages]), "a field is written twice")


def test_the_prompts_are_given_and_not_written() -> None:
    """No phase may replace what the step was begun with."""
    refuses(table([slot(Fake("prompts"), "a")]), "written twice")


SHARED = torch.zeros(8)
READER = Fake("rollout", reads=[weights("engine", SHARED[:4])])
READER_TOO = Fake("policy_prefix", reads=[weights("policy", SHARED)])
WRITER = Fake("update", mutates=[weights("optimizer", SHARED[4:])])


def test_many_may_read_at_the_same_time() -> None:
    """Readers do not disturb each other."""
    table([slot(READER, "a"), slot(READER_TOO, "b")]).check()


@pytest.mark.parametrize("order", [(READER, WRITER), (WRITER, READER)], ids=["reader first", "writer first"])
def test_a_writer_beside_a_reader_is_refused(order: tuple[Fake, Fake]) -> None:
    """Resources are compared by storage: two views of one storage clash though their names and elements differ."""
    one, two = order
    refuses(table([slot(one, "a"), slot(two, "b")]), "update phase changes optimizer while rollout phase uses engine")


def test_two_writers_at_the_same_time_are_refused() -> None:
    """One writer means one."""
    other = Fake("suffix", mutates=[weights("gradients", SHARED)])
    refuses(table([slot(WRITER, "a"), slot(other, "b")]), "share storage")


def test_a_writer_may_follow_a_reader() -> None:
    """On one lane, or behind a barrier, they never run at the same time."""
    table([slot(READER, "a"), slot(WRITER, "a")]).check()
    table([slot(READER, "a")], [slot(WRITER, "b")]).check()


def test_equal_bytes_in_two_storages_are_two_resources() -> None:
    """A copy may be written while the original is read."""
    copy = Fake("update", mutates=[weights("engine", SHARED.clone())])
    table([slot(READER, "a"), slot(copy, "b")]).check()


def test_a_stream_from_later_on_the_same_lane_is_refused() -> None:
    """The reader would wait for a phase that waits for the reader."""
    slots = [slot(REWARD, "a", streams=["rollout"]), slot(DECODE, "a")]
    refuses(table(slots), r"wait for each other: .*rewards phase")


def test_streams_that_wait_for_each_other_are_refused() -> None:
    """Two lanes whose first slots each wait for the other's second can never begin."""
    one, two = Fake("rollout", needs=["suffix"]), Fake("update", needs=["rewards"])
    slots = [
        slot(one, "a", streams=["suffix"]),
        slot(Fake("rewards"), "a"),
        slot(two, "b", streams=["rewards"]),
        slot(Fake("suffix"), "b"),
    ]
    refuses(table(slots), "wait for each other")


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan"), float("inf")])
def test_a_share_that_is_no_positive_number_is_refused(share: float) -> None:
    """A lane without turns would never end."""
    with pytest.raises(ScheduleError, match="share"):
        table([slot(DECODE, "a", share=share)]).check()


def test_a_timetable_can_be_read() -> None:
    """One line a lane: its stage, its slots in order, and what is streamed."""
    text = repr(table([slot(DECODE, "rollout"), slot(REWARD, "host", streams=["rollout"])], [slot(SUFFIX, "train")]))
    assert text.splitlines() == [
        "Fake:",
        "  P0  rollout  rollout phase",
        "      host     rewards phase (streaming rollout)",
        "  P1  train    suffix phase",
    ]

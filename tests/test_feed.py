"""A feed: parts of a field while it is still being made."""

from rollplex.feed import WAITING, Feed, Ready


def test_a_reader_waits_until_a_part_arrives() -> None:
    """An empty feed says so each time it is asked, and goes on where it was."""
    feed = Feed[str]()
    parts = feed.parts()
    assert [next(parts), next(parts)] == [WAITING, WAITING]
    feed.append("a")
    assert [next(parts), next(parts)] == ["a", WAITING]


def test_a_closed_feed_ends_after_its_last_part() -> None:
    """Nothing that arrived before the close is lost."""
    feed = Feed[int]()
    feed.append(1)
    feed.append(2)
    feed.close()
    assert list(feed.parts()) == [1, 2]


def test_each_reader_sees_every_part() -> None:
    """Reading takes nothing away from another reader."""
    feed = Feed[int]()
    feed.append(1)
    one, two = feed.parts(), feed.parts()
    assert next(one) == next(two) == 1
    feed.append(2)
    assert next(one) == next(two) == 2


def test_an_empty_feed_that_is_closed_has_no_parts() -> None:
    """A producer without parts is not waited for."""
    feed = Feed[int]()
    feed.close()
    assert list(feed.parts()) == []


def test_waiting_and_ready_read_well_in_a_log() -> None:
    """What a phase yields says what it is."""
    assert repr(WAITING) == "WAITING"
    assert "group 0" in repr(Ready(1, "group 0"))

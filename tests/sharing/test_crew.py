"""Processes of a crew answer together, and none outlives a failure, a death or a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sharing.crew_members import Echo

from rollplex.sharing.crew import Crew, CrewError

pytestmark = pytest.mark.timeout(900)


@contextmanager
def crew(timeout_s: float = 600.0) -> Iterator[tuple[Crew, list[int]]]:
    # What rehearsals need is imported here already: all crews of a process come from one server.
    with Crew(Echo, [(0,), (1,)], preload="rollplex.sharing.rank_process", timeout_s=600.0) as made:
        processes = made.ask("process")
        made._timeout_s = timeout_s
        yield made, processes


def gone(processes: list[int]) -> bool:
    """Whether all have ended; given a moment, because the server that forked them reaps them."""
    for _ in range(200):
        if not any(alive(process) for process in processes):
            return True
        time.sleep(0.05)
    return False


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_member_answers_in_order_and_all_end_with_the_block() -> None:
    with crew() as (made, processes):
        assert made.ask("how", 1, "b") == [(0, "how", (1, "b")), (1, "how", (1, "b"))]
        assert all(map(alive, processes))
    assert gone(processes)


@pytest.mark.parametrize(
    ("word", "timeout_s", "said"),
    [
        ("fail", 600.0, r"rank 1 failed while answering 'fail':\n(.|\n)*ValueError: the second one cannot"),
        ("die", 600.0, "rank 1 died with exit code 7 while answering 'die'"),
        ("sleep", 0.2, "rank 0, rank 1 did not answer 'sleep' within 0.2 s"),
    ],
)
def test_what_goes_wrong_is_told_and_nothing_is_left_behind(word: str, timeout_s: float, said: str) -> None:
    with crew(timeout_s) as (made, processes):
        with pytest.raises(CrewError, match=said):
            made.ask(word)
        assert gone(processes), "one member's failure ends those that still work on their answer"


def test_an_error_of_the_asking_process_ends_them_too() -> None:
    with pytest.raises(KeyboardInterrupt), crew() as (_, processes):
        raise KeyboardInterrupt
    assert gone(processes)

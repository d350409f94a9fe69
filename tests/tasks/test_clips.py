"""Rows of clips: reproducible, answerable, and cut so that no visual token spans two digits."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from rollplex.task import Row, Split
from rollplex.tasks.answer import correct_answer
from rollplex.tasks.clips import Clips


def clip(row: Row) -> list[bytes]:
    return [frame.tobytes() for frame in row["videos"][0]]


def test_rows_depend_on_seed_step_and_split_alone() -> None:
    def drawn(seed: int = 0, step: int = 0, split: Split = "train") -> str:
        return str([(clip(row), row["question"]) for row in Clips(seed=seed).rows(3, step=step, split=split)])

    assert drawn() == drawn()
    assert len({drawn(), drawn(seed=1), drawn(step=1), drawn(split="heldout")}) == 4


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("first", lambda digits: digits[0]),
        ("last", lambda digits: digits[-1]),
        ("largest", max),
        ("changes", lambda digits: sum(a != b for a, b in pairwise(digits))),
    ],
)
def test_answers_are_true(question: str, truth: Callable[..., Any]) -> None:
    for row in Clips(questions=(question,)).rows(30):
        assert row["answer"] == str(truth(row["digits"]))


def test_solution_is_scored_right() -> None:
    task = Clips()
    rows = task.rows(10)
    scores = correct_answer(completions=[task.solution(row) for row in rows], answer=[row["answer"] for row in rows])
    assert scores == [1.0] * 10


@pytest.mark.parametrize("question", ["first", "last", "largest", "changes"])
def test_blind_guessing_seldom_wins(question: str) -> None:
    answers = [row["answer"] for row in Clips(questions=(question,), pixels=28).rows(300)]
    assert max(answers.count(a) for a in set(answers)) / len(answers) < 0.35


def test_the_digit_moves_within_a_shot() -> None:
    frames = clip(Clips(shots=3, frames_per_shot=4).rows(1)[0])
    assert len(set(frames)) > 3


def test_without_jitter_a_shot_stands_still() -> None:
    frames = clip(Clips(shots=3, frames_per_shot=4, jitter=0).rows(1)[0])
    assert all(len(set(frames[i : i + 4])) == 1 for i in (0, 4, 8))


@pytest.mark.parametrize("task", [Clips(), Clips(shots=2, frames_per_shot=6, pixels=84)])
def test_frames_and_visual_tokens_are_counted(task: Any) -> None:
    row = task.rows(1)[0]
    frames = row["videos"][0]
    assert len(frames) == task.num_frames
    assert task.num_visual_tokens == len(frames) // 2 * (frames[0].width // 28) * (frames[0].height // 28)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"pixels": 50}, "50 pixels"),
        ({"frames_per_shot": 3}, "3 frames"),
        ({"frames_per_shot": 0}, "0 frames"),
        ({"shots": 0}, "0 shots"),
        ({"fps": 0}, "0 frames a second"),
        ({"questions": ("sum",)}, "sum"),
        ({"jitter": -0.1}, "jitter=-0.1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        Clips(**wrong)

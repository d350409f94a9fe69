"""Rows of digits: reproducible, balanced, answerable, and never with a held-out scan in training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollplex.task import Row, Split
from rollplex.tasks.answer import correct_answer, parse_answer
from rollplex.tasks.digits import Digits
from rollplex.tasks.handwriting import Handwriting


def pixels(row: Row) -> bytes:
    return row["images"][0].tobytes()


def text(row: Row) -> str:
    return row["prompt"][0]["content"][1]["text"]


def scans(split: Split) -> set[bytes]:
    return {scan.tobytes() for digit in Handwriting.load(split).scans for scan in digit}


def test_splits_share_no_scan() -> None:
    train, heldout = scans("train"), scans("heldout")
    assert len(train) + len(heldout) > 1700
    assert not train & heldout


def test_every_digit_is_in_both_splits() -> None:
    for split in ("train", "heldout"):
        assert min(len(digit) for digit in Handwriting.load(split).scans) >= 20


def test_rows_depend_on_seed_step_and_split_alone() -> None:
    def drawn(seed: int = 0, step: int = 0, split: Split = "train") -> list[tuple[bytes, str]]:
        return [(pixels(row), text(row)) for row in Digits(seed=seed).rows(4, step=step, split=split)]

    assert drawn() == drawn()
    assert len({str(d) for d in (drawn(), drawn(seed=1), drawn(step=1), drawn(split="heldout"))}) == 4


def test_fewer_rows_are_the_first_of_more() -> None:
    few, more = Digits().rows(2), Digits().rows(5)
    assert [pixels(row) for row in few] == [pixels(row) for row in more[:2]]


@pytest.mark.parametrize(
    ("question", "truth"),
    [
        ("largest", lambda row: max(row["digits"])),
        ("sum", lambda row: sum(row["digits"])),
        ("count", lambda row: sum(digit > 4 if "above" in text(row) else digit % 2 == 0 for digit in row["digits"])),
    ],
)
def test_answers_are_true(question: str, truth: Callable[..., Any]) -> None:
    for row in Digits(questions=(question,)).rows(30):
        assert row["answer"] == str(truth(row))


def test_solution_is_scored_right_and_another_rows_answer_is_not() -> None:
    task = Digits()
    rows = task.rows(20)
    columns = {
        "prompts": [row["prompt"] for row in rows],
        "completion_ids": None,
        "answer": [r["answer"] for r in rows],
    }
    assert correct_answer(completions=[task.solution(row) for row in rows], **columns) == [1.0] * 20
    wrong = [f"<answer> {row['answer']}1 </answer>" for row in rows]
    assert correct_answer(completions=wrong, **columns) == [0.0] * 20


@pytest.mark.parametrize(("question", "most"), [("largest", 0.2), ("sum", 0.2), ("count", 0.3)])
def test_blind_guessing_seldom_wins(question: str, most: float) -> None:
    answers = [row["answer"] for row in Digits(questions=(question,), cell=28).rows(400)]
    assert max(answers.count(a) for a in set(answers)) / len(answers) < most


def test_digits_are_drawn_in_reading_order() -> None:
    row = Digits(digits=2, grid=(1, 4), jitter=0).rows(1)[0]
    inked = np.asarray(row["images"][0].convert("L")).reshape(56, 4, 56).max((0, 2)) > 0
    assert inked.sum() == 2


@pytest.mark.parametrize(
    ("task", "size"),
    [(Digits(), (224, 224)), (Digits(cell=28, grid=(2, 3)), (84, 56)), (Digits.input_heavy(), (672, 616))],
)
def test_a_visual_token_covers_28_pixels(task: Any, size: tuple[int, int]) -> None:
    assert task.rows(1)[0]["images"][0].size == size
    assert task.num_visual_tokens == size[0] * size[1] // 28**2


def test_input_heavy_exceeds_500_visual_tokens() -> None:
    assert Digits.input_heavy().num_visual_tokens > 500


def test_noise_makes_blank_cells_grey() -> None:
    quiet, loud = (Digits(digits=1, noise=noise).rows(1)[0]["images"][0] for noise in (0.0, 0.2))
    assert (np.asarray(quiet) == 0).mean() > (np.asarray(loud) == 0).mean() + 0.3


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"cell": 30}, "30 pixels"),
        ({"cell": 0}, "0 pixels"),
        ({"digits": 17}, "17 digits in a grid of 4 x 4"),
        ({"digits": 0}, "0 digits"),
        ({"grid": (0, 3)}, "0 x 3"),
        ({"questions": ()}, "none"),
        ({"questions": ("smallest",)}, "smallest"),
        ({"jitter": 2}, "jitter=2"),
        ({"noise": -1}, "noise=-1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        Digits(**wrong)


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="'test'"):
        Digits().rows(1, split="test")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="-1 rows"):
        Digits().rows(-1)


@pytest.mark.parametrize(
    "completion", ["7", "<answer>", "<answer> 7 </answer> <answer> 7 </answer>", "<answer> 7 ", "<answer> 77 </answer>"]
)
def test_malformed_answers_earn_nothing(completion: str) -> None:
    assert correct_answer(completions=[completion], answer=["7"]) == [0.0]


def test_conversational_completions_are_read() -> None:
    said = "<think> 7 </think> <answer> 7 </answer>"
    blocks = [{"type": "text", "text": said}]
    completions = [[{"role": "assistant", "content": said}], [{"role": "assistant", "content": blocks}]]
    assert correct_answer(completions=completions, answer=["7", "7"]) == [1.0, 1.0]
    assert parse_answer(said) == "7"

"""A user's own rows: each once a pass, held-out ones never in training."""

from collections.abc import Sequence
from typing import Any

import pytest

from rollplex.task import Row
from rollplex.tasks.rows import Rows


def numbered(num: int) -> list[dict]:
    return [{"prompt": [{"role": "user", "content": str(i)}], "answer": i} for i in range(num)]


def right(completions: Sequence[str], answer: Sequence[Any], **columns: Any) -> list[float]:
    return [float(c == str(a)) for c, a in zip(completions, answer, strict=True)]


def answers(rows: Sequence[Row]) -> list[int]:
    return [row["answer"] for row in rows]


def test_a_pass_gives_every_training_row_once() -> None:
    task = Rows(rows=numbered(12), rewards=[right], heldout=0)
    seen = [a for step in range(3) for a in answers(task.rows(4, step=step))]
    assert sorted(seen) == list(range(12))


def test_passes_are_shuffled_differently() -> None:
    task = Rows(rows=numbered(12), rewards=[right], heldout=0)
    assert answers(task.rows(12, step=0)) != answers(task.rows(12, step=1))


def test_a_batch_may_span_two_passes() -> None:
    task = Rows(rows=numbered(5), rewards=[right], heldout=0)
    seen = [a for step in range(5) for a in answers(task.rows(3, step=step))]
    assert sorted(seen[:5]) == sorted(seen[5:10]) == sorted(seen[10:]) == list(range(5))


def test_held_out_rows_are_never_trained_on() -> None:
    task = Rows(rows=numbered(20), rewards=[right], heldout=0.25)
    heldout = answers(task.rows(5, split="heldout"))
    trained = {a for step in range(30) for a in answers(task.rows(4, step=step))}
    assert trained == set(range(20)) - set(heldout)


def test_another_seed_gives_another_order() -> None:
    first, second = (Rows(rows=numbered(20), rewards=[right], seed=seed, heldout=0).rows(20) for seed in (0, 1))
    assert answers(first) != answers(second)


def test_held_out_rows_may_be_given() -> None:
    task = Rows(rows=numbered(3), rewards=[right], heldout=numbered(2))
    assert answers(task.rows(2, split="heldout")) == [0, 1]


def test_held_out_rows_are_not_repeated() -> None:
    task = Rows(rows=numbered(10), rewards=[right], heldout=0.2)
    with pytest.raises(ValueError, match="there are 2 in all"):
        task.rows(3, split="heldout")


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ({"rows": []}, "without entries"),
        ({"rows": {"prompt": []}}, "dict"),
        ({"rows": [{"question": "?"}]}, r"rows\[0\].*question"),
        ({"rows": ["text"]}, r"rows\[0\].*str"),
        ({"heldout": 1.0}, "heldout=1.0"),
        ({"heldout": []}, "reading heldout"),
        ({"rewards": []}, "rewards"),
        ({"rewards": right}, "rewards"),
        ({"rewards": ["accuracy"]}, "accuracy"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        Rows(**{"rows": numbered(3), "rewards": [right], **wrong})

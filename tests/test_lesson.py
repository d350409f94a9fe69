"""Exercises: right, wrong, unanswered and unjudgeable answers."""

import pytest

from rollplex.lesson import check


@pytest.mark.parametrize(
    ("answer", "right", "verdict"),
    [
        (..., 3, None),
        (3, 3, True),
        (0.1 + 0.2, 0.3, True),
        (0.31, 0.3, False),
        ({"a", "b"}, {"b", "a"}, True),
        (["a"], {"a"}, False),
        (7, lambda x: x % 2, True),
        (8, lambda x: x % 2, False),
        ("seven", lambda x: x % 2 == 0 and x > 1, False),
        (float("nan"), 0.3, False),
    ],
)
def test_an_answer_is_judged(answer: object, right: object, verdict: bool | None) -> None:
    assert check(answer, right, hint="Look again.").right is verdict


def test_a_wrong_answer_gets_its_hint_and_a_right_one_does_not() -> None:
    assert "Look again." in repr(check(1, 2, hint="Look again."))
    assert "Look again." not in repr(check(2, 2, hint="Look again."))


def test_a_judge_that_fails_says_how() -> None:
    verdict = check("seven", lambda x: x.nothing, hint="Use a number.")
    assert verdict.right is False
    assert "AttributeError" in repr(verdict)
    assert "Use a number." in repr(verdict)

"""What a function can be called with is known before it runs, and alarms never turn into zeros."""

import functools
import math
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reward_fakes import GROUP, PROMPT, prompt_of, right

from rollplex import reward_calls
from rollplex.rewards import RewardError, Scorer


def takes_positions(completions: list[str], /) -> list[float]:
    return [0.0]


def of_verl(data_source: str, solution_str: str, ground_truth: str) -> float:
    return float(solution_str == ground_truth)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (takes_positions, r"\['completions'\] cannot be given by keyword"),
        (of_verl, "none of .*from_verl"),
        (lambda *completions: [0.0], "none of"),
        ("right", "is a str"),
        (dict, "is a type"),
        (torch.nn.Linear(1, 1), "is a model"),
    ],
)
def test_what_cannot_be_called_with_keywords_is_refused_at_construction(function: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Scorer([function])
    assert "f(prompts, completions, completion_ids" in str(caught.value)


def test_a_missing_column_is_named_without_calling_the_function() -> None:
    scorer = Scorer([right])
    scorer.check(PROMPT)
    with pytest.raises(ValueError, match=r"'right' needs \['answer'\].*\['label'\]"):
        scorer.check(prompt_of(label="2"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"functions": []}, "no reward functions"),
        ({"functions": [right], "weights": [1.0, 2.0]}, "got 2 for 1"),
        ({"functions": [right], "weights": [math.nan]}, "finite"),
        ({"functions": [right], "timeout_s": 0}, "timeout_s=0"),
    ],
)
def test_invalid_arguments_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Scorer(**options)


def with_alarm(completions: list[Any], **_: Any) -> list[float]:
    """Swallows what the alarm raises off the main thread, as libraries do: the zero must never get through."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(0)
    except ValueError:
        return [0.0] * len(completions)
    return [1.0] * len(completions)


def calls_alarm(completions: list[Any], **_: Any) -> list[float]:
    return with_alarm(completions)


def test_an_alarm_works_on_the_main_thread() -> None:
    assert Scorer([with_alarm]).score(GROUP, PROMPT).mean() == 1.0


def test_an_alarm_off_the_main_thread_is_refused_not_scored_zero() -> None:
    with pytest.raises(ValueError, match=r"'with_alarm' uses signal\.alarm"):
        Scorer([with_alarm], timeout_s=5.0).score(GROUP, PROMPT)


def test_an_alarm_in_a_lane_of_its_own_is_refused_too() -> None:
    with pytest.raises(ValueError, match=r"'with_alarm' uses signal\.alarm"):
        reward_calls.call_within(lambda: Scorer([with_alarm]).score(GROUP, PROMPT), timeout_s=20)


@pytest.mark.parametrize(
    "function", [calls_alarm, functools.partial(calls_alarm), lambda completions, **_: with_alarm(completions)]
)
def test_an_alarm_that_is_called_off_the_main_thread_is_warned_of(function: Callable[..., Any]) -> None:
    scorer = Scorer([function], timeout_s=5.0)
    with pytest.warns(RuntimeWarning, match=r"with_alarm, which uses signal\.alarm"):
        scorer.score(GROUP, PROMPT)


def test_the_ban_on_alarms_off_the_main_thread_is_explained() -> None:
    set_signal = signal.signal

    def hidden(completions: list[Any], **_: Any) -> list[float]:
        set_signal(signal.SIGUSR1, signal.SIG_DFL)
        return [1.0] * 3

    with pytest.raises(RewardError, match="use timeout_s=None there"):
        Scorer([hidden], timeout_s=5.0).score(GROUP, PROMPT)

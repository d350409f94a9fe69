"""Functions written for verl and EasyR1 score as they are."""

from collections.abc import Callable
from typing import Any

import pytest
from reward_fakes import GROUP, PROMPT, prompt_of, slow_right

from rollplex.reward_adapters import from_easyr1, from_verl
from rollplex.rewards import RewardError, Scorer


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, float]:
    return {"score": float(solution_str == ground_truth), "length": len(solution_str)}


def test_a_verl_function_scores_each_response_and_logs_its_other_entries() -> None:
    scorer = Scorer([from_verl(compute_score)])
    row = {"data_source": "sums", "reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0}}
    assert scorer.score(GROUP, prompt_of(**row)).values.tolist() == [1.0, 0.0, 0.0]
    assert scorer.names == ("compute_score",)
    assert scorer.log.take().extras == {"compute_score/length": [1, 3, 2]}


def easy(reward_input: dict[str, Any]) -> dict[str, float]:
    return {
        "overall": float(reward_input["response"] == reward_input["ground_truth"]),
        "n": reward_input["response_length"],
    }


def easy_batch(reward_inputs: list[dict[str, Any]]) -> list[dict[str, float]]:
    return [easy(x) for x in reward_inputs]


@pytest.mark.parametrize("function", [from_easyr1(easy), from_easyr1(easy_batch, kind="batch")])
def test_an_easyr1_function_of_either_kind(function: Callable[..., Any]) -> None:
    scorer = Scorer([function])
    assert scorer.score(GROUP, PROMPT).values.tolist() == [1.0, 0.0, 0.0]
    assert list(scorer.log.take().extras.values()) == [[1, 3, 2]]


def test_a_batch_function_of_the_wrong_length_is_caught() -> None:
    with pytest.raises(RewardError, match="expected 3 scores, one for each response, got 1"):
        Scorer([from_easyr1(lambda inputs: easy_batch(inputs)[:1], kind="batch")]).score(GROUP, PROMPT)


def test_an_adapted_function_that_fails_says_on_which_response() -> None:
    def picky(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        return 1 / (len(solution_str) - 3)

    with pytest.raises(RewardError) as caught:
        Scorer([from_verl(picky)]).score(GROUP, prompt_of(reward_model={"ground_truth": "2"}))
    assert "response 1: 'two'" in caught.value.__cause__.__notes__[0]


def test_a_result_without_the_score_is_named() -> None:
    with pytest.raises(RewardError, match=r"response 0: its result has \['acc'\], but no 'score'"):
        Scorer([from_verl(lambda **_: {"acc": 1.0}, name="acc")]).score(
            GROUP, prompt_of(reward_model={"ground_truth": "2"})
        )


def test_a_missing_answer_column_is_named() -> None:
    with pytest.raises(RewardError, match="needs the column 'solution'"):
        Scorer([from_easyr1(easy, answer="solution")]).score(GROUP, PROMPT)


@pytest.mark.parametrize("adapter", [from_verl, from_easyr1])
def test_adapters_refuse_async_functions(adapter: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="async def"):
        adapter(slow_right)


def test_an_unknown_kind_names_those_allowed() -> None:
    with pytest.raises(ValueError, match="'sequential' or 'batch'"):
        from_easyr1(easy, kind="loop")

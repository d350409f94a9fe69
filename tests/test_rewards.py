"""Reward functions are called as TRL calls them, and their scores are combined as TRL combines them."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from reward_fakes import GROUP, PROMPT, QUESTION, group_of, prompt_of, returning, right

from rollplex.prompts import Prompt
from rollplex.rewards import Scorer
from rollplex.step import RolloutGroup


def recorded(prompt: Prompt, group: RolloutGroup = GROUP, step: int = 0) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def record(**keywords: Any) -> list[float]:
        seen.update(keywords)
        return [0.0] * group.size

    Scorer([record]).score(group, prompt, step=step)
    return seen


def test_keywords_are_those_of_trl() -> None:
    seen = recorded(prompt_of(answer="2", images=["picture"], level=1))
    assert set(seen) == {
        *("prompts", "completions", "completion_ids", "answer", "images", "level"),
        *("trainer_state", "log_extra", "log_metric"),
    }
    assert seen["answer"] == ["2"] * 3
    assert seen["images"] == [["picture"]] * 3


def test_completions_are_messages_where_the_prompt_is_messages_and_text_where_it_is_text() -> None:
    assert recorded(PROMPT)["completions"] == [[{"role": "assistant", "content": t}] for t in GROUP.texts]
    seen = recorded(prompt_of(prompt="What is 1 + 1?"))
    assert seen["completions"] == list(GROUP.texts)
    assert seen["prompts"] == ["What is 1 + 1?"] * 3


def test_prompts_have_the_images_in_place_where_there_are_any() -> None:
    assert recorded(PROMPT)["prompts"] == [QUESTION] * 3
    pictured = recorded(prompt_of(num_images=1))["prompts"]
    assert [b["type"] for b in pictured[2][0]["content"]] == ["image", "text"]


def test_completion_ids_stop_at_the_length() -> None:
    assert recorded(PROMPT)["completion_ids"] == [[0], [3, 4, 5], [6, 7]]


def test_a_function_that_changes_its_prompt_changes_nobody_elses() -> None:
    def rude(prompts: list[Any], **_: Any) -> list[float]:
        prompts[0][0]["content"] = "changed"
        return [float(p[0]["content"] == "changed") for p in prompts]

    assert Scorer([rude]).score(GROUP, PROMPT).values.tolist() == [1.0, 0.0, 0.0]
    assert PROMPT.row["prompt"][0]["content"] == "What is 1 + 1?"


def test_a_function_without_kwargs_gets_what_it_names() -> None:
    def plain(completions: list[Any], answer: list[str]) -> list[float]:
        return right(completions, answer)

    assert Scorer([plain]).score(GROUP, PROMPT).values.tolist() == [1.0, 0.0, 0.0]


def test_the_step_reaches_reward_shaping() -> None:
    assert recorded(PROMPT, step=7)["trainer_state"].global_step == 7


def test_what_functions_log_is_kept_until_taken() -> None:
    def logging(completions: list[Any], log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
        log_extra("shown", ["a", "b", "c"])
        log_metric("mean", 0.5)
        return [0.0] * 3

    scorer = Scorer([logging])
    scorer.score(GROUP, PROMPT)
    taken = scorer.log.take()
    assert (taken.extras, taken.metrics) == ({"shown": ["a", "b", "c"]}, {"mean": [0.5]})
    assert scorer.log.take().metrics == {}


def test_a_row_column_with_a_reserved_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['completions'\].*rename"):
        Scorer([right]).score(GROUP, prompt_of(answer="2", completions="x"))


def test_a_function_defined_again_is_used_from_then_on() -> None:
    score = returning([0.0] * 3)
    first = Scorer([score])
    score = returning([1.0] * 3)
    assert Scorer([score]).score(GROUP, PROMPT).mean() == 1.0
    assert first.score(GROUP, PROMPT).mean() == 0.0


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda completions, **_: [1.0] * 3, "<lambda>"),
        (functools.partial(right, answer=["2"] * 3), "right"),
        (functools.partial(returning([1.0] * 3)), "returning"),
    ],
)
def test_lambdas_closures_and_partials_are_functions(function: Callable[..., Any], name: str) -> None:
    assert list(Scorer([function]).score(GROUP, prompt_of()).by_function) == [name]


def test_functions_of_one_name_keep_their_own_results() -> None:
    scored = Scorer([returning([1.0] * 3), returning([2.0] * 3)]).score(GROUP, PROMPT)
    assert {n: v[0].item() for n, v in scored.by_function.items()} == {"returning": 1.0, "returning#2": 2.0}


def test_none_leaves_the_sum_and_is_nan_in_its_own_scores() -> None:
    functions = [returning([1.0, None, None], "a"), returning([10.0, 10.0, None], "b"), returning([None] * 3, "never")]
    scored = Scorer(functions, weights=[1.0, 0.5, 100.0]).score(GROUP, PROMPT)
    assert scored.values[:2].tolist() == [6.0, 5.0]
    assert scored.values[2].isnan()
    assert scored.by_function["a"].isnan().tolist() == [False, True, True]
    assert scored.by_function["never"].isnan().all()
    assert scored.mean() == 5.5


def test_a_group_that_nothing_applies_to_is_warned_of_once() -> None:
    scorer = Scorer([returning([None] * 3)])
    with pytest.warns(RuntimeWarning, match=r"prompt 3.*What is 1 \+ 1"):
        assert scorer.score(GROUP, PROMPT).values.isnan().all()
    scorer.score(GROUP, PROMPT)  # a second warning would be an error


def test_a_response_without_tokens_is_not_scored() -> None:
    scored = Scorer([returning([1.0, 1.0])]).score(group_of("2", "", lengths=[1, 0]), PROMPT)
    assert scored.values.isnan().tolist() == [False, True]

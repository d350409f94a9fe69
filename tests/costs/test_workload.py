"""Workloads and lengths: what is drawn stays within limits, and what cannot be drawn is refused."""

import numpy
import pytest

from rollplex.costs.workload import Draw, Workload

NAN, INF = float("nan"), float("inf")
BAD = [
    ("prompts", 0), ("prompts", 2.5), ("group", 0), ("prompt_tokens", 0.2), ("prompt_tokens", NAN), ("prompt_spread", -1),
    ("response_tokens", 0), ("response_tokens", INF), ("response_spread", NAN), ("visual_share", 2), ("visual_share", -1),
    ("max_prompt_tokens", 0), ("max_response_tokens", -5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_size_that_cannot_be_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"making the Workload 'workload': {name} is .*; give"):
        Workload().with_(**{name: value})


@pytest.mark.parametrize("what", ["prompt", "response"])
def test_a_median_above_its_limit_is_refused_and_not_cut(what: str) -> None:
    with pytest.raises(ValueError, match="Raise the limit"):
        Workload().with_(**{f"{what}_tokens": 1e5})


@pytest.mark.parametrize("spread", [0.0, 3.0, 1e6])
def test_a_spread_of_any_width_stays_within_the_limits(spread: float) -> None:
    draw = Workload(prompt_spread=spread, response_spread=spread).draw()
    assert 1 <= draw.prompts.min() <= draw.prompts.max() <= 8192
    assert 1 <= draw.responses.min() <= draw.responses.max() <= 2048


def test_a_workload_like_counted_lengths_has_their_median_and_spread() -> None:
    drawn = Workload(prompts=4000, group=1, prompt_tokens=900, prompt_spread=0.5).draw()
    again = Workload.from_lengths(drawn.prompts.tolist(), [10, 20, 40], prompts=7)
    assert again.prompts == 7
    assert again.prompt_tokens == pytest.approx(900, rel=0.05)
    assert again.prompt_spread == pytest.approx(0.5, rel=0.05)
    assert (again.response_tokens, again.max_response_tokens) == (20.0, 40)


@pytest.mark.parametrize("lengths", [[], [0, 5], [NAN], [[1, 2]]])
def test_lengths_that_are_none_are_refused(lengths: list[float]) -> None:
    with pytest.raises(ValueError, match=r"the prompts' are .*; give a list of token counts"):
        Workload.from_lengths(lengths, [1])


@pytest.mark.parametrize(
    ("prompts", "responses"),
    [([], []), ([5], [3]), ([1, 2], [[1]]), ([0], [[1]]), ([NAN], [[1]]), ([5], [[-1]]), ([5], [[]])],
)
def test_lengths_of_a_step_that_do_not_fit_together_are_refused(prompts: list[float], responses: list[object]) -> None:
    with pytest.raises(ValueError, match="giving the lengths of a step"):
        Draw(prompts=numpy.array(prompts), responses=numpy.array(responses), visual_share=0.5)


def test_visual_tokens_are_those_of_each_prompt_where_they_are_known() -> None:
    mixed = Draw(
        prompts=numpy.array([100, 100]), responses=numpy.ones((2, 1)), visual_share=0.4, visual=numpy.array([0, 80])
    )
    assert mixed.visual_tokens.tolist() == [0, 80]


def test_the_first_prompts_are_the_same_however_many_are_drawn() -> None:
    work = Workload(prompt_spread=0.5)
    few, many = (work.draw(3, prompts=num) for num in (4, 9))
    assert (many.prompts[:4] == few.prompts).all()
    assert (many.responses[:4] == few.responses).all()
    assert len(set(many.prompts.tolist()) & set(many.responses.ravel().tolist())) < 9  # and not of the same numbers

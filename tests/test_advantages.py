"""Advantages follow TRL's rule, and missing or equal scores do exactly what they should."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollplex.advantages import advantages, scale_name

NAN = math.nan
SCALES = ("group", "batch", "none")

scores = st.floats(-10, 10, allow_subnormal=False)
groups = st.lists(st.lists(st.one_of(scores, st.just(NAN)), min_size=1, max_size=6), min_size=1, max_size=4)


def tensors(values: list[list[float]]) -> list[torch.Tensor]:
    return [torch.tensor(group, dtype=torch.float64) for group in values]


def by_hand(values: list[list[float]], scale: str) -> list[list[float]]:
    """The rule in plain Python: mean of the group, Bessel's standard deviation, 1e-4."""

    def std(xs: list[float]) -> float:
        mean = math.fsum(xs) / len(xs)
        return math.sqrt(math.fsum((x - mean) ** 2 for x in xs) / (len(xs) - 1)) if len(xs) > 1 else 0.0

    present = [[x for x in group if not math.isnan(x)] for group in values]
    everything = [x for group in present for x in group]
    made = []
    for group, known in zip(values, present, strict=True):
        divisor = {"group": lambda k=known: std(k) + 1e-4, "batch": lambda: std(everything) + 1e-4, "none": lambda: 1.0}
        mean = math.fsum(known) / len(known) if known else 0.0
        made.append([0.0 if math.isnan(x) else (x - mean) / divisor[scale]() for x in group])
    return made


@pytest.mark.parametrize("scale", SCALES)
@settings(deadline=None, max_examples=50)
@given(values=groups)
def test_the_rule_of_the_paper(values: list[list[float]], scale: str) -> None:
    made = advantages(tensors(values), scale)
    for ours, expected in zip(made.values, by_hand(values, scale), strict=True):
        torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), atol=1e-8, rtol=1e-8)


@settings(deadline=None, max_examples=50)
@given(values=groups)
def test_unscored_members_change_nothing_for_the_others(values: list[list[float]]) -> None:
    without = [[x for x in group if not math.isnan(x)] for group in values]
    made = advantages(tensors(values))
    for ours, mask, alone in zip(made.values, made.scored, advantages(tensors(without)).values, strict=True):
        assert torch.equal(ours[mask], alone)
        assert torch.equal(ours[~mask], torch.zeros_like(ours[~mask]))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("score", [0.0, 0.1, 1 / 3])
def test_equal_scores_give_exactly_zero(score: float, scale: str) -> None:
    made = advantages(tensors([[score] * 7, [0.0, 1.0]]), scale)
    assert made.values[0].tolist() == [0.0] * 7
    assert made.signal == (False, True)


def test_the_mean_of_equal_scores_alone_would_not_be_exact() -> None:
    group = torch.full((7,), 0.1, dtype=torch.float32)
    sloppy = (group - group.mean()) / (group.std() + 1e-4)
    assert sloppy.abs().max() > 0, "control: without the rule there is rounding error to magnify"
    assert advantages(group).values[0].abs().max() == 0


def test_a_single_scored_member_gets_zero_and_no_signal() -> None:
    made = advantages(tensors([[NAN, 3.0, NAN]]))
    assert made.values[0].tolist() == [0.0, 0.0, 0.0]
    assert made.signal == (False,)
    assert made.groups_without_scores == 0


def test_a_group_without_scores_is_zero_and_flagged() -> None:
    made = advantages(tensors([[NAN, NAN], [0.0, 1.0]]))
    assert made.values[0].tolist() == [0.0, 0.0]
    assert (made.groups_without_scores, made.groups_without_signal) == (1, 1)


@pytest.mark.parametrize("scale", SCALES)
def test_a_batch_without_any_signal_has_no_nan(scale: str) -> None:
    made = advantages(tensors([[NAN, NAN], [2.0, 2.0], [NAN, 1.0]]), scale)
    assert all(group.tolist() == [0.0, 0.0] for group in made.values)


def test_one_group_many_groups_and_a_table_agree() -> None:
    table = torch.tensor([[1.0, 0.0, 0.5], [0.0, 2.0, NAN]])
    assert torch.equal(advantages(table).values[1], advantages(table[1]).values[0])
    assert torch.equal(advantages(table).values[1], advantages(list(table)).values[1])


def test_batch_scale_depends_on_the_other_groups_and_group_scale_does_not() -> None:
    first, second = tensors([[0.0, 1.0], [0.0, 10.0]])
    assert torch.equal(advantages([first, second], "group").values[0], advantages(first, "group").values[0])
    assert not torch.equal(advantages([first, second], "batch").values[0], advantages(first, "batch").values[0])


def test_scores_are_left_as_they_were() -> None:
    group = torch.tensor([1.0, NAN, 0.0])
    advantages(group)
    assert group[1].isnan()


def test_true_and_false_are_trls_group_and_none() -> None:
    assert (scale_name(True), scale_name(False)) == ("group", "none")


@pytest.mark.parametrize("scale", ["Group", "std", None, 1])
def test_an_unknown_scale_names_those_allowed(scale: object) -> None:
    with pytest.raises(ValueError, match="'group', 'batch', 'none'"):
        scale_name(scale)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (torch.tensor([1, 0]), "torch.int64"),
        (torch.tensor(1.0), "shape ()"),
        ([], "no groups"),
        (torch.tensor([1.0, math.inf]), "infinite"),
    ],
)
def test_what_is_no_group_of_scores_is_refused(values: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(").replace(")", r"\)")):
        advantages(values)

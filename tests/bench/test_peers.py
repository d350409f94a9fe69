"""Comparing with TRL: what is made of the measurements, and that both sides do the same work."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from rollplex.bench.agreement import compare, gradient_differences
from rollplex.bench.peers import AGREEMENT, agrees, bench, summary
from rollplex.bench.workloads import WORKLOADS, Workload, workload
from rollplex.tasks import Digits

TINY = Workload(name="tiny", task=Digits(seed=0), prompts=2, group=3, max_new_tokens=6, answers="full")
needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="compares with TRL, which is an extra")


def side(*seconds: float, tokens: int = 10) -> dict[str, Any]:
    return {"step_s": [100.0, *seconds], "tokens": [tokens] * (len(seconds) + 1)}


def test_ratios_are_of_pairs_and_leave_the_first_step_out() -> None:
    found = summary(TINY, [(side(1.0), side(5.0)), (side(2.0), side(2.0)), (side(1.0, 1.0), side(9.0, 9.0))])
    assert found["ratios"] == pytest.approx([5.0, 1.0, 9.0])
    assert found["ratio_median"] == pytest.approx(5.0)
    assert found["ours_samples_per_s"] == pytest.approx(TINY.samples)


def test_sides_that_sampled_different_numbers_of_tokens_are_refused() -> None:
    with pytest.raises(RuntimeError, match="different numbers of tokens"):
        summary(TINY, [(side(1.0), side(1.0, tokens=11))])


@pytest.mark.parametrize(
    ("loss", "gradient", "expected"),
    [(0.0, 0.0, True), (2 * AGREEMENT, 0.0, False), (0.0, 2 * AGREEMENT, False), (float("nan"), 0.0, False)],
)
def test_the_same_work_needs_equal_loss_and_gradient(loss: float, gradient: float, expected: bool) -> None:
    assert agrees({"first_step_loss_difference": loss, "first_step_gradient_difference": gradient}) is expected


def test_a_gradient_that_only_one_side_has_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="only one side has one for"):
        gradient_differences({"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(2)})


def test_the_worst_parameter_is_seen_beside_a_large_one_that_agrees() -> None:
    found = gradient_differences(
        {"large": torch.full((2,), 1e6), "small": torch.zeros(2)},
        {"large": torch.full((2,), 1e6), "small": torch.ones(2)},
    )
    assert found["first_step_worst_parameter_difference"] == pytest.approx(1.0)
    assert found["first_step_gradient_difference"] < AGREEMENT


@pytest.mark.parametrize("options", [{"pairs": 0}, {"steps": 1}, {"workloads": ["unknown"]}])
def test_a_request_without_meaning_is_refused_before_anything_runs(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"comparing with TRL|choosing a workload"):
        bench(**options)


@pytest.mark.parametrize("name", [*WORKLOADS, "default_full"])
def test_forced_lengths_fit_the_workload(name: str) -> None:
    work = workload(name)
    lengths = work.lengths()
    assert lengths.shape == (work.prompts, work.group)
    assert lengths.min() >= 1
    assert lengths.max() <= work.max_new_tokens


@needs_trl
@pytest.mark.filterwarnings("ignore")  # TRL's own, which a release may add to
def test_the_first_step_is_trls_first_step() -> None:
    found = compare(TINY)
    assert found["loss"] != 0
    assert agrees(found)
    assert found["first_step_worst_parameter_difference"] < AGREEMENT

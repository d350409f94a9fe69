"""Thresholds of the light, and where a step has one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from views import fakes

from rollplex.metrics import metrics
from rollplex.mismatch import Light, Mismatch, mismatch
from rollplex.sampling import Sampling
from rollplex.step import Step
from rollplex.trace import Trace


@pytest.mark.parametrize(
    ("mean", "light"),
    [(0.0, "green"), (0.0049, "green"), (0.005, "amber"), (0.01, "amber"), (0.0101, "red"), (float("nan"), "red")],
)
def test_the_light_changes_at_the_thresholds(mean: float, light: Light) -> None:
    assert Mismatch(mean=mean, max=0.5).light == light


def step(mean: float, sampling: Sampling | None = None) -> Step:
    made = fakes.step(0)
    assert made.suffix is not None
    assert made.rollout is not None
    rollout = replace(made.rollout, sampling=sampling or Sampling())
    return replace(made, rollout=rollout, suffix=replace(made.suffix, mismatch_mean=mean, mismatch_max=0.9))


@pytest.mark.parametrize(("mean", "level"), [(1e-7, 0.0), (0.007, 1.0), (0.2, 2.0)])
def test_the_log_has_the_light_as_a_number(mean: float, level: float) -> None:
    assert metrics(step(mean), Trace())["training/rollout_probs_diff_level"] == level


def test_probabilities_of_a_cut_distribution_are_not_compared() -> None:
    cut = step(float("nan"), Sampling(top_p=0.9))
    assert mismatch(cut) is None
    assert "training/rollout_probs_diff_level" not in metrics(cut, Trace())


def test_a_difference_that_is_no_number_is_a_fault() -> None:
    """The control: without top-p, NaN is not taken for a distribution that was cut."""
    found = mismatch(step(float("nan")))
    assert found is not None
    assert found.light == "red"


def test_a_step_without_a_suffix_has_none() -> None:
    assert mismatch(replace(fakes.step(0), suffix=None)) is None

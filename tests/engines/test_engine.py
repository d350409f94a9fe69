"""The request to an engine: what is no request is refused before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_policy import prompts

from rollplex.engines.engine import Request
from rollplex.prompts import PromptBatch
from rollplex.sampling import Sampling


def request(**changes: Any) -> Request:
    options = {"prompts": prompts("text only"), "group": 2, "max_new_tokens": 4, "sampling": Sampling()}
    return Request(**{**options, **changes})


@pytest.mark.parametrize("wrong", [{"group": 0}, {"max_new_tokens": 0}], ids=str)
def test_no_response_at_all_is_refused(wrong: dict[str, int]) -> None:
    """At least one response of at least one token."""
    with pytest.raises(ValueError, match="both must be >= 1"):
        request(**wrong)


def test_no_prompts_are_refused() -> None:
    """There would be nothing to sample."""
    with pytest.raises(ValueError, match="the batch has no prompts"):
        request(prompts=PromptBatch(prompts=()))


@pytest.mark.parametrize("lengths", [[[1, 2]], [[1, 2], [3, 5]], [[1, 0], [1, 1]]], ids=["shape", "too long", "zero"])
def test_lengths_that_cannot_be_are_refused(lengths: list[list[int]]) -> None:
    """One a response, from 1 to the limit."""
    with pytest.raises(ValueError, match=r"wanted shape \(2, 2\) and lengths from 1 to 4"):
        request(lengths=torch.tensor(lengths))


def test_lengths_within_the_limit_are_accepted() -> None:
    """The control of the test above."""
    assert request(lengths=torch.tensor([[1, 2], [4, 3]])).lengths is not None

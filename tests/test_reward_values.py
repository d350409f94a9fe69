"""One number or None for each response; anything else is an error that says what was found."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from reward_fakes import GROUP, PROMPT, returning

from rollplex.rewards import RewardError, Scorer


@pytest.mark.parametrize(
    "returned",
    [
        [1, 0, 2],
        (1.0, 0.0, 2.0),
        [True, False, 2],
        [Decimal("1"), Fraction(0), np.float32(2)],
        [torch.tensor(1.0), np.bool_(False), np.array(2)],
        np.array([1.0, 0.0, 2.0]),
        torch.tensor([1, 0, 2]),
        torch.tensor([1.0, 0.0, 2.0], requires_grad=True),
    ],
)
def test_sequences_of_numbers_are_accepted(returned: Any) -> None:
    values = Scorer([returning(returned)]).score(GROUP, PROMPT).values
    assert values.dtype == torch.float64
    assert values.tolist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1.0], "expected 3 scores, one for each response, got 1"),
        ([1.0] * 4, "expected 3 scores, one for each response, got 4"),
        (1.0, "got a float: 1.0"),
        (torch.tensor(1.0), r"expected shape \(3,\), got a Tensor of shape \(\)"),
        (np.zeros((3, 1)), r"expected shape \(3,\), got a ndarray of shape \(3, 1\)"),
        (None, "got a NoneType"),
        ("123", "got a str: '123'"),
        ({"score": 1.0}, "got a dict"),
        ([0.0, "1", 0.0], "response 1: expected a number, got a str: '1'"),
        ([0.0, 0.0, [1.0]], "response 2: expected a number, got a list"),
        ([0.0, 0.0, torch.zeros(2)], r"response 2: expected a number, got a Tensor of shape \(2,\)"),
        ([0.0, 1j, 0.0], "response 1: expected a number, got a complex"),
        ([0.0, math.nan, 0.0], "response 1: got nan"),
        ([0.0, 0.0, -math.inf], "response 2: got -inf"),
        ([10**400, 0.0, 0.0], "response 0: got inf"),
        ([Decimal("NaN"), 0.0, 0.0], "response 0: got nan"),
        (torch.tensor([0.0, 0.0, math.nan]), "response 2: got nan"),
    ],
)
def test_anything_else_is_an_error_that_names_function_and_finding(returned: Any, said: str) -> None:
    with pytest.raises(RewardError, match=said) as caught:
        Scorer([returning(returned, "bad")]).score(GROUP, PROMPT)
    assert "scoring prompt 3 with reward function 'bad'" in str(caught.value)


def test_nan_and_infinity_can_be_read_as_none() -> None:
    scored = Scorer([returning([math.nan, math.inf, 1.0])], nan_is_none=True).score(GROUP, PROMPT)
    assert scored.values.isnan().tolist() == [True, True, False]

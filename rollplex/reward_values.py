"""What a reward function may return: one number or None for each response.

This file knows types and shapes of returned values. It does not know which function returned them.

Shapes: G responses in a group.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch

RETURN = "return one number or None for each completion"


def as_scores(returned: Any, num: int, *, nan_is_none: bool = False) -> torch.Tensor:
    """``[G]`` float64 scores made of what a function returned, NaN where it returned None.

    Nothing is broadcast, and text is not parsed. NaN and infinity are errors, unless they are to be read as None.

    >>> as_scores([True, 2, None], 3)
    tensor([1., 2., nan], dtype=torch.float64)
    """
    values = _listed(returned, num)
    if len(values) != num:
        raise ValueError(f"expected {num} scores, one for each response, got {len(values)}; {RETURN}")
    return torch.tensor([_score(v, i, nan_is_none) for i, v in enumerate(values)], dtype=torch.float64)


def _listed(returned: Any, num: int) -> Sequence[Any]:
    if isinstance(returned, (torch.Tensor, np.ndarray)):
        if len(returned.shape) != 1:
            raise ValueError(
                f"expected shape ({num},), got a {_kind(returned)} of shape {tuple(returned.shape)}; {RETURN}"
            )
        return returned.tolist()
    if isinstance(returned, Coroutine):
        returned.close()  # else Python warns that it was never awaited, which says less than this error
        raise ValueError("expected a list of scores, got a coroutine; define the function itself with `async def`")
    if isinstance(returned, (str, bytes)) or not isinstance(returned, Sequence):
        raise ValueError(f"expected a list of {num} scores, got a {_kind(returned)}: {returned!r:.60}; {RETURN}")
    return returned


def _score(value: Any, index: int, nan_is_none: bool) -> float:
    if value is None:
        return math.nan
    if isinstance(value, (torch.Tensor, np.ndarray)):
        if value.shape != ():
            raise ValueError(
                f"response {index}: expected a number, got a {_kind(value)} of shape {tuple(value.shape)}; {RETURN}"
            )
        value = value.item()
    if not isinstance(value, (Real, Decimal, np.bool_)):
        raise ValueError(f"response {index}: expected a number, got a {_kind(value)}: {value!r:.60}; {RETURN}")
    try:
        score = float(value)
    except OverflowError:  # an int beyond the largest float
        score = math.inf
    if math.isfinite(score):
        return score
    if nan_is_none:
        return math.nan
    raise ValueError(
        f"response {index}: got {score}, which would poison the whole group. Return None where the function does not "
        f"apply, or construct the scorer with nan_is_none=True"
    )


def _kind(value: Any) -> str:
    return type(value).__name__

"""Scores of queries with keys, rounded alike whoever computes them: scaled first, summed over the channels in one order.

Scores are the largest numbers that are rounded on the way, and a sharp model makes much of their last bit. Knows neither
prompts nor causality. Prefix and backward pass have torch's own attention and take no more than `prescaled` from here.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

MIN_QUERIES = 4
"""Fewest queries in a product with keys.

From MIN_QUERIES x MIN_KEYS on, torch's CPU product sums over a head's channels from first to last, as vLLM does. Smaller
products are summed in another order, which moved log-probabilities of a sharp model by up to 3.7e-5. (With two threads so is a
single product, N = 1, of 5 to 11 queries; one thread has no such exception.)
"""
MIN_KEYS = 16
"""Fewest keys in it."""


def attention_scores(queries: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Scores ``[N, Q, K]`` of scaled queries ``[N, Q, D]`` with keys ``[N, K, D]``, plus a bias ``[N, 1, K]``.

    >>> attention_scores(torch.ones(1, 1, 2), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([[[3., 7.]]])
    """
    num, seen = queries.shape[1], keys.shape[1]
    if num < MIN_QUERIES:
        queries = pad(queries, (0, 0, 0, MIN_QUERIES - num))
    if seen < MIN_KEYS:
        keys = pad(keys, (0, 0, 0, MIN_KEYS - seen))
        bias = None if bias is None else pad(bias, (0, MIN_KEYS - seen))
    keys = keys.transpose(1, 2)
    found = torch.bmm(queries, keys) if bias is None else torch.baddbmm(bias, queries, keys)
    return found[:, :num, :seen]


def prescaled(q: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Queries ``[..., D]`` as they meet keys, and what their products remain to be multiplied by.

    Rollout engines scale queries first, and so must who is compared with them. Narrow queries would lose more by it than the
    last bit of a score.
    """
    scale = q.shape[-1] ** -0.5
    return (q * scale, 1.0) if q.dtype in (torch.float32, torch.float64) else (q, scale)

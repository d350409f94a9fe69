"""Products of queries with keys, summed over a head's channels from first to last whatever their sizes.

Scores are the largest numbers that are rounded on the way, and a sharp model makes much of their last bit. Decode loop,
trainer and vLLM agree on them to that bit, because all of them sum in this order.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

MIN_QUERIES = 4
"""Fewest queries in a product with keys.

From MIN_QUERIES x MIN_KEYS on, torch's CPU product sums over a head's channels from first to last, as vLLM does. Smaller
products are summed in another order, which moved log-probabilities of a sharp model by up to 3.7e-5.
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

"""A batch of random log-probs, and the loss of it summed in parts."""

from types import SimpleNamespace
from typing import Any

import torch

from rollplex.losses import GRPO

LIMIT = 12
TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")


def make(loss_type: str, **changes: Any) -> GRPO:
    options = {
        "beta": 0.04,
        "epsilon": 0.1,
        "epsilon_high": 0.25,
        "max_completion_length": LIMIT,
        "old_logprobs": "rollout",
    }
    return GRPO(loss_type=loss_type, **{**options, **changes})


def batch(lengths: list[int], seed: int = 0) -> SimpleNamespace:
    """Random log-probs of sequences of some lengths, float64, and their advantages."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths, default=0))
    draw = [-torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    return SimpleNamespace(
        logprobs=draw[0].requires_grad_(),
        old=draw[0].detach() + 0.5 * (draw[1] - draw[1].mean()),
        reference=draw[2],
        advantages=torch.randn(shape[0], generator=generator, dtype=torch.float64),
        lengths=torch.tensor(lengths),
    )


def ours(loss: GRPO, b: SimpleNamespace, rows: list[slice] | None = None) -> torch.Tensor:
    """The loss, summed over parts of the batch, each cut to its own longest sequence."""
    total = torch.zeros((), dtype=torch.float64)
    for part in rows or [slice(None)]:
        lengths = b.lengths[part]
        width = int(lengths.max())
        inputs = [x[part, :width] for x in (b.logprobs, b.old, b.reference)]
        terms = loss.terms(*inputs, b.advantages[part], lengths)
        total = total + loss.partial_sum(terms.total, lengths)
    return total / loss.denominator(len(b.lengths), int(b.lengths.sum()))

"""The products in which a response meets keys: never so small that torch sums them in another order."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from rollouts import BATCH
from tiny_policy import tiny
from torch.utils._python_dispatch import TorchDispatchMode

from rollplex.engines import decoding
from rollplex.model import scores
from rollplex.phases.decode import Decode
from rollplex.policy import Policy


class Scores(TorchDispatchMode):
    """Notes queries and keys of every product of two batches over the channels of a head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.smallest = (10**6, 10**6)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        products = {torch.ops.aten.bmm.default: args[:2], torch.ops.aten.baddbmm.default: args[1:3]}
        if func in products and products[func][0].shape[-1] == self.channels:
            queries, keys = products[func][0].shape[1], products[func][1].shape[2]
            self.smallest = min(self.smallest[0], queries), min(self.smallest[1], keys)
        return func(*args, **(kwargs or {}))


def smallest(policy: Policy, num: int, group: int) -> tuple[int, int]:
    """Fewest queries and fewest keys of any product of a rollout of so many tokens."""
    decode = Decode(policy.engine(), group=group, max_new_tokens=num, lengths=torch.full((len(BATCH), group), num))
    with Scores(policy.model.text.layers[0].head_dim) as seen:
        decode(BATCH)
    return seen.smallest


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("num", [2, 5, 20])
def test_no_product_is_smaller_than_the_least(num: int, group: int) -> None:
    """From the first token on, however short the rollout is, and where a prompt has one response."""
    queries, keys = smallest(tiny(), num, group)
    assert queries >= 4
    assert keys >= 16


@pytest.mark.parametrize(("where", "least"), [(decoding, (3, 1)), (scores, (3, 16))], ids=["own keys", "prompt"])
def test_smaller_ones_would_be_seen(monkeypatch: pytest.MonkeyPatch, where: ModuleType, least: tuple[int, int]) -> None:
    """The control: three queries of the shipped shape share a key, and the first token has one key."""
    monkeypatch.setattr(where, "MIN_QUERIES", 1)
    monkeypatch.setattr(where, "MIN_KEYS", 1)
    assert smallest(tiny(), 5, 1) == least

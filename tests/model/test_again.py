"""Layers that are made again in the backward pass give every weight its gradient, whichever others are frozen."""

from __future__ import annotations

import pytest
import torch
from tiny_policy import gap, prompts, responses, tiny, train

from rollplex.model.again import made_again

BATCH = prompts("one image")

FROZEN = {
    "vision": ("visual",),
    "patch embedding": ("patch_embed",),
    "embedding": ("embed_tokens",),
    "first layers": ("embed_tokens", "language_model.layers.0.", "visual"),
    "one block": ("visual.blocks.0.",),
}


@pytest.mark.parametrize("parts", FROZEN.values(), ids=FROZEN)
def test_frozen_weights_cost_the_others_no_gradient(parts: tuple[str, ...]) -> None:
    found = []
    for checkpointed in (False, True):
        policy = tiny()
        for name, leaf in policy.model.leaves.items():
            leaf.requires_grad_(all(part not in name for part in parts))
        tape = "checkpoint" if checkpointed else "keep"
        made = responses(policy, BATCH)
        found.append(train(policy, BATCH, *made, prefix={"tape": tape}, checkpointed=checkpointed)[1])
    assert gap(*found) < 1e-12
    assert all(bool(g.any()) for n, g in found[0].items() if "layers.1." in n and n.endswith("weight"))
    assert not any(bool(g.any()) for n, g in found[1].items() if any(part in n for part in parts))


@pytest.mark.parametrize("leads", [False, True], ids=["nothing", "the input"])
def test_a_layer_that_trains_nothing_is_run_as_it_is(leads: bool) -> None:
    """Without a weight that wants a gradient, and without a warning."""
    x = torch.ones(3, requires_grad=leads)
    y = made_again(torch.exp, x)
    assert torch.equal(y, x.exp())
    assert y.requires_grad is leads


def test_nothing_is_kept_where_autograd_is_off() -> None:
    weight = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not made_again(lambda x: x * weight, torch.ones(3)).requires_grad

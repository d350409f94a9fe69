"""Fused storages: one tensor under several parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rollplex.model.fuse import Fused


class Owner(nn.Module):
    """Two projections of one input, and a norm."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(3, 4, bias=bias)
        self.gate = nn.Linear(3, 2, bias=bias)
        self.norm = nn.LayerNorm(3)


@pytest.mark.parametrize("bias", [True, False])
def test_fusing_stacks_rows_in_order(bias: bool) -> None:
    """One product gives what the parts give, side by side."""
    owner, fused = Owner(bias=bias), Fused()
    x = torch.randn(5, 3)
    expected = torch.cat((owner.gate(x), owner.up(x)), dim=-1)
    made = fused.fuse("m", owner, ["gate", "up"], "gate_up")
    assert torch.allclose(made(x), expected)
    assert made.weight.shape == (6, 3)
    assert (made.bias is None) is not bias


def test_parameters_become_views() -> None:
    """What is written through one name is read through the other, values as before."""
    owner, fused = Owner(bias=True), Fused()
    before = owner.gate.weight.detach().clone()
    made = fused.fuse("m", owner, ["up", "gate"], "gate_up")
    assert torch.equal(owner.gate.weight, before)
    with torch.no_grad():
        made.weight.zero_()
    assert not bool(owner.gate.weight.any())
    assert fused.places["m.gate.weight"] == ("m.gate_up.weight", slice(4, 6))
    assert fused.leaves["m.gate_up.weight"] is made.weight


def test_a_vector_keeps_its_storage() -> None:
    """What is fused with nothing is not copied."""
    owner, fused = Owner(bias=True), Fused()
    address = owner.norm.weight.data_ptr()
    vector = fused.vector("m.norm", owner.norm)
    assert vector.data_ptr() == owner.norm.weight.data_ptr() == address
    assert fused.leaves.keys() == {"m.norm.weight"}


def test_leaves_are_leaves() -> None:
    """Autograd takes them as inputs, and the module's parameters as no longer trainable by themselves."""
    owner, fused = Owner(bias=True), Fused()
    fused.single("m", owner, "up")
    assert all(leaf.is_leaf for leaf in fused.leaves.values())
    assert not owner.up.weight.requires_grad
    assert owner.gate.weight.requires_grad, "not fused, not touched"

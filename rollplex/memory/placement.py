"""Moving a model's weights and gradients into a memory, or back to where torch allocates.

The tensors stay the same objects, so that optimizers, engines and layers go on holding them.
"""

from __future__ import annotations

import torch

from rollplex.memory.arena import Contents
from rollplex.memory.memory import Memory
from rollplex.model.model import Model


def move_weights(
    model: Model, owner: str, old: Memory | None, new: Memory | None, *, contents: Contents = "kept", stays: bool = True
) -> None:
    """Weights from one memory to another, which may be none."""
    leaves = list(model.leaves.values())
    if old is None:
        _move(leaves, owner, new, contents, stays)
    else:
        with old.present(owner):
            _move(leaves, owner, new, contents, stays)
        old.give_up(owner)
    for name, (leaf, rows) in model.fused.places.items():
        model.module.get_parameter(name).data = model.leaves[leaf].detach()[rows]


def move_gradients(model: Model, owner: str, old: Memory | None, new: Memory | None) -> None:
    """Gradient buffers likewise; their values are not kept."""
    gradients = [leaf.grad for leaf in model.leaves.values() if leaf.grad is not None]
    if new is not None:
        new.house(owner, gradients, contents="regenerable")
    else:
        for gradient in gradients:
            gradient.data = torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)
    if old is not None:
        old.give_up(owner)
    for name, (leaf, rows) in model.fused.places.items():
        whole = model.leaves[leaf].grad
        model.module.get_parameter(name).grad = None if whole is None else whole[rows]


def _move(tensors: list[torch.Tensor], owner: str, new: Memory | None, contents: Contents, stays: bool) -> None:
    if new is not None:
        new.house(owner, tensors, contents=contents, stays=stays)
        return
    for tensor in tensors:
        tensor.data = tensor.detach().clone()

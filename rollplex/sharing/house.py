"""A model that lives in given storage: its fused weights are views of an engine's tensors in a shared region.

After this the lean forward, the rollout engine, the optimizer and ``save_pretrained`` all meet the region's bytes.
"""

from __future__ import annotations

import torch

from rollplex.model.model import Model
from rollplex.model.qwen2_5_vl import VISION
from rollplex.sharing.bind import Binding


def house(model: Model, binding: Binding, *, keep_values: bool = True) -> dict[str, torch.Tensor]:
    """Move a model's weights into a binding as the engine's, and return them by name for `Binding.check`.

    With ``keep_values`` the model's numbers are written into the region; without, the model takes over what is there
    and nothing is copied. Optimizers and engines that hold the model's tensors go on holding them.
    """
    binding.adopt("engine", model.leaves, keep_values=keep_values)
    point(model)
    return dict(model.leaves)


@torch.no_grad()
def point(model: Model) -> None:
    """Make the module's parameters views of the fused weights again, and gradients lie as their weights do."""
    for leaf in model.leaves.values():
        if leaf.grad is not None and leaf.grad.stride() != leaf.stride():
            leaf.grad = torch.empty_like(leaf).copy_(leaf.grad)
    for name, (leaf_name, rows) in model.fused.places.items():
        parameter, leaf = model.module.get_parameter(name), model.leaves[leaf_name]
        parameter.data = leaf.detach()[rows]
        parameter.grad = None if leaf.grad is None else leaf.grad[rows]


def house_tower(model: Model, binding: Binding) -> None:
    """Let the vision tower alone take over what a shard's region holds; the text weights of the model stay its own."""
    for name, leaf in model.leaves.items():
        if name.startswith(VISION):
            leaf.data = binding.engine[name].view(leaf.shape)
    point(model)

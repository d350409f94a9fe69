"""The floating-point floor of a training step: multiplications that no schedule can leave out, over a measured rate.

Counted from the weights' shapes: 2 operations for each weight and token forward, twice that backward, plus attention.
Left out: norms, softmax, sampling, rewards, the optimizer. So the floor is below what any program can reach.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch

from rollplex.model.model import Model
from rollplex.prompts import Prompt


def matrix_rate(size: int = 1024, repeats: int = 15) -> float:
    """Operations per second of a float32 matrix product, with the threads that torch uses now: the best of a few."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(times)


def prefix_operations(model: Model, prompts: Sequence[Prompt]) -> float:
    """Forward of the vision tower and the text layers over some prompts; of the last layer only what is wanted."""
    total = 0.0
    for prompt in prompts:
        total += vision_operations(model, prompt)
        for index, layer in enumerate(model.text.layers):
            last = index == len(model.text.layers) - 1
            rows = layer.num_heads * layer.head_dim
            kv = 2 * layer.qkv.weight[rows:].numel() * prompt.length
            rest = 2 * (layer.qkv.weight[:rows].numel() + _after(layer)) * (1 if last else prompt.length)
            seen = prompt.length if last else prompt.length * (prompt.length + 1) / 2
            total += kv + rest + 4 * rows * seen
    return total


def vision_operations(model: Model, prompt: Prompt) -> float:
    """Forward of the vision tower over a prompt's pictures."""
    tower = model.vision
    total = 0.0
    for grids in (prompt.image_grid_thw.tolist(), prompt.video_grid_thw.tolist()):
        for frames, height, width in grids:
            patches, width_e = height * width, tower.patch_embed.shape[0]
            side = tower.window_units * tower.merge_size
            in_windows = _squares(height, side) * _squares(width, side)
            per_patch = 2.0 * tower.patch_embed.numel()
            for block in tower.blocks:
                weights = (block.qkv, block.out, block.gate_up, block.down)
                per_patch += 2 * sum(w.weight.numel() for w in weights)
                per_patch += 4 * width_e * (patches if block.full_attention else in_windows / patches)
            per_unit = 2 * (tower.merge_in.weight.numel() + tower.merge_out.weight.numel())
            total += frames * patches * (per_patch + per_unit / tower.merge_size**2)
    return total


def suffix_operations(model: Model, prompts: Sequence[Prompt], lengths: torch.Tensor) -> float:
    """Forward over responses of ``lengths [N, G]``: all but their last token enter, every token is predicted."""
    total = 0.0
    for prompt, group in zip(prompts, lengths.tolist(), strict=True):
        for length in group:
            total += 2 * model.text.head.weight.numel() * length
            for layer in model.text.layers:
                weights = layer.qkv.weight.numel() + _after(layer)
                seen = (length - 1) * (prompt.length + length / 2)
                total += 2 * weights * (length - 1) + 4 * layer.num_heads * layer.head_dim * seen
    return total


def step_operations(model: Model, prompts: Sequence[Prompt], lengths: torch.Tensor, *, reference: bool) -> float:
    """The least that one on-policy step needs: the actor's prefix serves decode too, and everything runs once.

    The backward pass is twice the forward pass, but for the patch embedding: nobody wants a gradient of the pixels.
    """
    prefix, suffix = prefix_operations(model, prompts), suffix_operations(model, prompts, lengths)
    patches = sum(len(p.pixel_values) + len(p.pixel_values_videos) for p in prompts)
    decode, training = suffix, 3 * (prefix + suffix) - 2 * model.vision.patch_embed.numel() * patches
    return training + decode + (prefix + suffix if reference else 0.0)


def _squares(length: int, side: int) -> int:
    """Sum of the squares of the pieces that a length is cut into, the last one perhaps shorter."""
    whole, rest = divmod(length, side)
    return whole * side**2 + rest**2


def _after(layer: object) -> int:
    return sum(w.weight.numel() for w in (layer.out, layer.gate_up, layer.down))  # type: ignore[attr-defined]


def middle(values: Sequence[float]) -> float:
    """The median, as a plain float."""
    return float(median(values))

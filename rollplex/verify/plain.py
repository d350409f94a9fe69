"""The plain computation: transformers' own full-sequence forward, one response at a time, nothing shared.

It uses none of the lean forward, the split, or the losses; it is what they are held against.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch
from transformers import PreTrainedModel

from rollplex.prompts import Prompt, PromptBatch
from rollplex.sampling import Sampling
from rollplex.step import RolloutGroup

ROTARY = "apply_rotary_pos_emb_vision"
"""transformers' function that turns the tower's queries and keys, in float32."""


def widen(module: PreTrainedModel) -> None:
    """Let a float64 module compute in float64 throughout.

    transformers casts to float32 in every norm, and where the vision tower turns queries and keys, whatever the model's
    type. In a float64 comparison these casts are the only rounding of note, and they hide what is compared; everything
    else of the module stays as it is.
    """
    for part in module.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = partial(_norm, part)
        elif type(part).__name__.endswith("VisionAttention"):
            part.forward = partial(_turning_wide(type(part).forward), part)


def _norm(part: Any, x: torch.Tensor) -> torch.Tensor:
    return part.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + part.variance_epsilon))


def _turning_wide(forward: Any) -> FunctionType:
    """The same code of transformers' attention, which calls `_turn` where it would call the function that casts."""
    if ROTARY not in forward.__code__.co_names:
        raise RuntimeError(
            f"widening a vision tower: {forward.__qualname__} of transformers no longer calls {ROTARY}. Say in "
            "rollplex/verify/plain.py where this version casts to float32."
        )
    code: CodeType = forward.__code__
    return FunctionType(code, {**forward.__globals__, ROTARY: _turn}, argdefs=forward.__defaults__)


def _turn(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.unsqueeze(-2).to(q.dtype), sin.unsqueeze(-2).to(q.dtype)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    return turned(q), turned(k)


def logprobs(module: PreTrainedModel, prompt: Prompt, tokens: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probability of each response token ``[R]``, from one forward over prompt and response."""
    ids = torch.cat((prompt.input_ids, tokens))[None]
    kinds = torch.zeros_like(ids)
    kinds[0, : prompt.length] = token_kinds(module, prompt)
    pictures: dict[str, Any] = {}
    if prompt.num_images:
        pictures |= {"pixel_values": prompt.pixel_values, "image_grid_thw": prompt.image_grid_thw}
    if prompt.num_videos:
        pictures |= {"pixel_values_videos": prompt.pixel_values_videos, "video_grid_thw": prompt.video_grid_thw}
        pictures |= {"second_per_grid_ts": torch.tensor(prompt.second_per_grid_ts)}
    output = module(
        input_ids=ids, mm_token_type_ids=kinds, attention_mask=torch.ones_like(ids), use_cache=False, **pictures
    )
    logits = output.logits[0, prompt.length - 1 : -1]
    if sampling.banned:
        logits = logits.index_fill(-1, torch.tensor(sampling.banned), float("-inf"))
    return torch.log_softmax(logits / sampling.temperature, dim=-1).gather(-1, tokens[:, None])[:, 0]


def token_kinds(module: PreTrainedModel, prompt: Prompt) -> torch.Tensor:
    """0 for text, 1 for image, 2 for video tokens ``[P]``, as transformers wants them."""
    config: Any = module.config
    kinds = torch.zeros_like(prompt.input_ids)
    kinds[prompt.input_ids == config.image_token_id] = 1
    kinds[prompt.input_ids == config.video_token_id] = 2
    return kinds


def loss(
    module: PreTrainedModel,
    reference: PreTrainedModel,
    prompts: PromptBatch,
    groups: Sequence[RolloutGroup],
    advantages: Sequence[torch.Tensor],
    beta: float,
) -> float:
    """GRPO's loss, its gradient left in the module: the mean over responses of their mean token term."""
    num = sum(group.size for group in groups)
    total = 0.0
    for prompt, group, weights in zip(prompts, groups, advantages, strict=True):
        for tokens, length, weight in zip(group.tokens, group.lengths.tolist(), weights, strict=True):
            new = logprobs(module, prompt, tokens[:length], group.sampling)
            with torch.no_grad():
                old = logprobs(reference, prompt, tokens[:length], group.sampling)
            ratio = torch.exp(new - new.detach())
            gap = old - new
            term = (-ratio * weight.to(new.dtype) + beta * (gap.exp() - gap - 1)).mean() / num
            term.backward()
            total += float(term.detach())
    return total

"""The response forward on a kept boundary: log-probabilities of given tokens.

Shapes: B responses of one microbatch, R the longest, P their prompts' longest length.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import embedding, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from rollplex.boundary import PrefixOutput
from rollplex.model.model import Model
from rollplex.model.text import TextLayer


def response_hidden(
    model: Model,
    prefix: PrefixOutput,
    prompt_lengths: torch.Tensor,
    next_positions: torch.Tensor,
    tokens: torch.Tensor,
    *,
    checkpointed: bool = False,
) -> torch.Tensor:
    """Hidden states ``[B, R, d]`` that predict tokens ``[B, R]``.

    The first comes from the boundary: the last prompt token predicts the first response token. The others come from
    the response itself, whose positions start at ``next_positions [B]`` (after the largest visual position).
    """
    first = prefix.last_hidden[:, None]
    length = tokens.shape[1] - 1
    if length == 0:
        return first
    x = embedding(tokens[:, :-1], model.text.embedding)
    cos, sin = model.text.rotary.text_angles(next_positions[:, None] + torch.arange(length, device=x.device), x.dtype)
    mask = suffix_mask(prompt_lengths, prefix.keys[0].shape[2], length)
    for layer, keys, values in zip(model.text.layers, prefix.keys, prefix.values, strict=True):
        run = partial(_layer, layer, cos=cos[:, :, None], sin=sin[:, :, None], mask=mask)
        x = checkpoint(run, x, keys, values, use_reentrant=False) if checkpointed else run(x, keys, values)
    return torch.cat((first, model.text.norm(x)), dim=1)


def suffix_mask(prompt_lengths: torch.Tensor, padded: int, length: int) -> torch.Tensor:
    """``[B, 1, length, padded + length]`` bool: the real prompt, then the response up to oneself."""
    device = prompt_lengths.device
    prompt = (torch.arange(padded, device=device) < prompt_lengths[:, None])[:, None].expand(-1, length, -1)
    own = torch.ones(length, length, dtype=torch.bool, device=device).tril().expand(len(prompt), -1, -1)
    return torch.cat((prompt, own), dim=-1)[:, None]


def _layer(
    layer: TextLayer,
    x: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    cos: torch.Tensor,
    sin: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in layer.project(x, cos, sin))
    times = layer.num_heads // layer.num_kv_heads
    k, v = (torch.cat(pair, dim=2).repeat_interleave(times, dim=1) for pair in ((keys, k), (values, v)))
    attended = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return layer.finish(x, attended.transpose(1, 2).flatten(2))


def token_logprobs(
    model: Model, hidden: torch.Tensor, tokens: torch.Tensor, *, temperature: float, banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability ``[T]`` of each token and the distribution's entropy ``[T]`` (detached), for hidden ``[T, d]``.

    The distribution is the one that is sampled from: visual placeholders impossible, logits over the temperature.
    """
    logits = model.text.head(hidden).to(model.wide) / temperature
    logits = logits.index_fill(-1, banned, float("-inf"))
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        plogp = logprobs.exp() * logprobs.index_fill(-1, banned, 0.0)
        entropy = -plogp.sum(-1)
    return logprobs.gather(-1, tokens[:, None])[:, 0], entropy

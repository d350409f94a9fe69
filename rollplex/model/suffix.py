"""The response forward on a kept boundary: log-probabilities of given tokens.

Shapes: B responses of one microbatch, R the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from rollplex.model.again import made_again
from rollplex.model.attention import PromptKeys
from rollplex.model.model import Model
from rollplex.model.text import TextLayer


def response_hidden(
    model: Model,
    last_hidden: torch.Tensor,
    prompt_keys: Sequence[PromptKeys],
    next_positions: torch.Tensor,
    tokens: torch.Tensor,
    *,
    checkpointed: bool = False,
) -> torch.Tensor:
    """Hidden states ``[B, R, d]`` that predict tokens ``[B, R]``.

    The first comes from the boundary: the last prompt token predicts the first response token. The others come from
    the response itself, whose positions start at ``next_positions [B]`` (after the largest visual position).
    """
    first = last_hidden[:, None]
    length = tokens.shape[1] - 1
    if length == 0:
        return first
    x = model.text.embed(tokens[:, :-1])
    cos, sin = model.text.rotary.text_angles(next_positions[:, None] + torch.arange(length, device=x.device), x.dtype)
    for layer, prompt in zip(model.text.layers, prompt_keys, strict=True):
        run = partial(_layer, layer, prompt, cos=cos[:, :, None], sin=sin[:, :, None])
        x = made_again(run, x) if checkpointed else run(x)
    return torch.cat((first, model.text.norm(x)), dim=1)


def _layer(
    layer: TextLayer, prompt: PromptKeys, x: torch.Tensor, *, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    q, k, v = (t.transpose(1, 2) for t in layer.project(x, cos, sin))
    return layer.finish(x, prompt.attend(q, k, v).transpose(1, 2).flatten(2))


def token_logprobs(
    model: Model, hidden: torch.Tensor, tokens: torch.Tensor, *, temperature: float, banned: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability ``[T]`` of each token and the distribution's entropy ``[T]`` (detached), for hidden ``[T, d]``.

    The distribution is the one that is sampled from: visual placeholders impossible, logits over the temperature.
    """
    logits = model.text.head(hidden).to(model.wide) / temperature
    logits = logits.index_fill(-1, banned, float("-inf"))
    logprobs = torch.log_softmax(logits, dim=-1)
    del logits  # as large as the vocabulary, like everything here: there are never more than two of them
    with torch.no_grad():
        entropy = -logprobs.exp().mul_(logprobs).index_fill_(-1, banned, 0.0).sum(-1)
    return logprobs.gather(-1, tokens[:, None])[:, 0], entropy

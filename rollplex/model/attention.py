"""Attention of response tokens: over their prompt, which a group shares, and over their own response.

One softmax spans both parts. The prompt part of all rows of a prompt is one product with keys that are stored once. In the
backward pass each part uses the output and log-sum-exp of both, which makes its gradient exact. The prompt's gradient is
added to the boundary's accumulators, in their wider type, and never exists once a row.

Shapes: B rows, R their tokens, n prompts, W rows a prompt, P prompt tokens, Hq query heads, H key/value heads, D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from rollplex.model.rectangle import Rectangle
from rollplex.model.scores import MIN_QUERIES, attention_scores, prescaled

BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 - the only one on a CPU that takes a log-sum-exp
SCORES = 2**18
"""Scores that exist at once, or those of one token's queries: as many as stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class PromptKeys:
    """One layer's boundary, as the rows of a microbatch see it."""

    keys: torch.Tensor
    """``[all prompts, H, P, D]``, detached."""
    values: torch.Tensor
    """Likewise."""
    bias: torch.Tensor | None
    """``[n, 1, 1, P]``: 0 on real tokens, -inf on padding; None where nothing is padded."""
    rectangle: Rectangle
    """Which rows belong to which prompt."""
    index: torch.Tensor
    """``[B]`` each row's prompt."""
    gradients: tuple[torch.Tensor, torch.Tensor] | None
    """Accumulators of the gradients of ``keys`` and ``values``; None for a frozen model."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q ``[B, Hq, R, D]`` over the prompt and, causally, over own k, v ``[B, H, R, D]``."""
        if q.device.type != "cpu":
            return self._attend_anywhere(q, k, v)
        # Keys and values are shown to autograd too: below a frozen response path, only the prompt may want its gradient.
        result: torch.Tensor = _Attend.apply(q, k, v, self.keys, self.values, self)
        return result

    def _attend_anywhere(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The same by torch's public attention, on any device: prompt keys are copied to every row."""
        length, padded = q.shape[2], self.keys.shape[2]
        mask = torch.ones(len(q), 1, length, padded + length, dtype=torch.bool, device=q.device).tril(padded)
        if self.bias is not None:
            mask[..., :padded] &= (self.rectangle.rows(self._spread(self.bias)) == 0).expand(-1, -1, length, -1)
        keys, values = self.keys[self.index], self.values[self.index]
        if self.gradients is not None:
            keys = Take.apply(self.keys, self.index, self.gradients[0])
            values = Take.apply(self.values, self.index, self.gradients[1])
        k, v = per_query_head(torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2), q.shape[1])
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def _spread(self, per_prompt: torch.Tensor) -> torch.Tensor:
        return per_prompt[:, None].expand(-1, self.rectangle.width, *per_prompt.shape[1:])

    def grouped(self, x: torch.Tensor) -> torch.Tensor:
        """Rows ``[B, Hq, R, *]`` as the queries of each prompt's key/value heads ``[n, H, W (Hq / H) R, *]``."""
        heads = self.keys.shape[1]
        return self.rectangle.grouped(x.unflatten(1, (heads, -1))).transpose(1, 2).flatten(2, 4)

    def rows(self, x: torch.Tensor, length: int) -> torch.Tensor:
        """The way back: ``[n, H, W (Hq / H) R, *] -> [B, Hq, R, *]``."""
        x = x.unflatten(2, (self.rectangle.width, -1, length)).transpose(1, 2)
        return self.rectangle.rows(x).flatten(1, 2)

    def accumulate(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Add gradients ``[n, H, P, D]`` of the prompts that have rows."""
        if self.gradients is None:
            return
        for total, part in zip(self.gradients, (keys, values), strict=True):
            if self.rectangle.prompts is None:
                total.add_(part)
            else:
                total.index_add_(0, self.rectangle.prompts, part.to(total.dtype))


class _Attend(torch.autograd.Function):
    """One softmax over both parts in the forward pass, torch's CPU flash attention on each in the backward pass.

    Flash attention's forward would do too, merged by its log-sum-exp. But that is as large as the largest score and rounded
    accordingly, and then decides between prompt and response: vLLM and the trainer of a sharp model were up to 2.2e-5 apart.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        _keys: torch.Tensor,
        _values: torch.Tensor,
        prompt: PromptKeys,
    ) -> torch.Tensor:
        scaled, _ = prescaled(q.to(torch.promote_types(q.dtype, torch.float32)))
        over_prompt = _over_prompts(prompt, prompt.grouped(scaled))
        out, lse = _over_own(scaled, k, v, *(prompt.rows(t, q.shape[2]) for t in over_prompt))
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.prompt = prompt
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        prompt: PromptKeys = ctx.prompt
        gradient, length = gradients[0].contiguous(), q.shape[2]
        scaled, scale = prescaled(q)  # once more: saved, it would be one more number for each channel of a token
        grouped = [prompt.grouped(t) for t in (gradient, scaled, out, lse)]
        keys, values = prompt.rectangle.chosen(prompt.keys), prompt.rectangle.chosen(prompt.values)
        q_p, k_p, v_p = BACKWARD(
            grouped[0],
            grouped[1],
            keys,
            values,
            grouped[2],
            grouped[3][..., 0],
            0.0,
            False,
            attn_mask=_mask(prompt, grouped[1]),
            scale=scale,
        )
        prompt.accumulate(k_p, v_p)
        parts = per_query_head(k, v, q.shape[1])
        q_s, k_s, v_s = BACKWARD(gradient, scaled, *parts, out, lse[..., 0], 0.0, True, scale=scale)
        heads = k.shape[1]
        k_s, v_s = (t.unflatten(1, (heads, -1)).sum(2) for t in (k_s, v_s))
        return (prompt.rows(q_p, length) + q_s).mul_(q.shape[-1] ** -0.5 / scale), k_s, v_s, None, None, None


def _over_prompts(prompt: PromptKeys, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention over prompts before it is divided, its divisor, and the largest score.

    Scaled q and the results ``[n, H, W (Hq / H) R, D or 1]``.
    """
    keys, values = (prompt.rectangle.chosen(t).flatten(0, 1) for t in (prompt.keys, prompt.values))
    bias = None
    if prompt.bias is not None:
        bias = prompt.bias.to(q.dtype).expand(-1, q.shape[1], -1, -1).flatten(0, 1)
    queries = q.flatten(0, 1)
    attended, total, top = (queries.new_empty(*queries.shape[:2], size) for size in (q.shape[-1], 1, 1))
    num_queries = max(MIN_QUERIES, SCORES // keys.shape[1])
    num_lines = max(1, num_queries // queries.shape[1])
    for line in range(0, len(queries), num_lines):
        at = slice(line, line + num_lines)
        their_keys, their_values = keys[at].to(q.dtype), values[at].to(q.dtype)
        for start in range(0, queries.shape[1], num_queries):
            here = at, slice(start, start + num_queries)
            weights = attention_scores(queries[here], their_keys, None if bias is None else bias[at])
            top[here] = weights.amax(-1, keepdim=True)
            weights.sub_(top[here]).exp_()
            total[here] = weights.sum(-1, keepdim=True)
            attended[here] = torch.bmm(weights, their_values)
    return attended.view_as(q), total.view_as(q[..., :1]), top.view_as(q[..., :1])


def _over_own(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attended: torch.Tensor, total: torch.Tensor, top: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[B, Hq, R, D]`` and log-sum-exp ``[B, Hq, R, 1]`` of both parts.

    From scaled q ``[B, Hq, R, D]``, own k and v ``[B, H, R, D]``, and what `_over_prompts` found, by rows.
    """
    (rows, heads, length, _), queries = k.shape, q.unflatten(1, (k.shape[1], -1))
    keys, values = (t.to(q.dtype).flatten(0, 1) for t in (k, v))
    # Laid out by token, as who reads the output next wants it.
    out, lse = q.new_empty(rows, length, *q.shape[1::2]).transpose(1, 2), torch.empty_like(total)
    num = max(1, SCORES // (q.shape[0] * q.shape[1] * length))
    for start in range(0, length, num):
        here, seen = slice(start, start + num), min(start + num, length)
        later = torch.ones(seen - start, seen, dtype=torch.bool, device=q.device).triu_(start + 1)
        found = attention_scores(queries[:, :, :, here].flatten(2, 3).flatten(0, 1), keys[:, :seen])
        weights = found.reshape(*q.shape[:2], seen - start, seen).masked_fill_(later, float("-inf"))
        largest = torch.maximum(top[:, :, here], weights.amax(-1, keepdim=True))
        weights.sub_(largest).exp_()
        shrunk = (top[:, :, here] - largest).exp_()
        divisor = (total[:, :, here] * shrunk).add_(weights.sum(-1, keepdim=True))
        own = torch.bmm(weights.view(rows * heads, -1, seen), values[:, :seen]).view_as(q[:, :, here])
        out[:, :, here] = own.addcmul_(attended[:, :, here], shrunk).div_(divisor)
        lse[:, :, here] = divisor.log_().add_(largest)
    return out, lse


class Take(torch.autograd.Function):
    """``tensor[index]`` whose backward adds into an accumulator instead of making a dense gradient each time.

    The responses of a group all read one prompt, so their gradients are summed in the accumulator's (wider) type.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, index: torch.Tensor, accumulator: torch.Tensor) -> torch.Tensor:
        """Rows of the tensor."""
        ctx.save_for_backward(index)
        ctx.accumulator = accumulator
        return tensor[index]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        """Nothing to autograd: the sum is in the accumulator."""
        (index,) = ctx.saved_tensors
        ctx.accumulator.index_add_(0, index, gradients[0].to(ctx.accumulator.dtype))
        return None, None, None


def _mask(prompt: PromptKeys, queries: torch.Tensor) -> torch.Tensor | None:
    return None if prompt.bias is None else prompt.bias.expand(-1, 1, queries.shape[2], -1)


def per_query_head(k: torch.Tensor, v: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[B, H, R, D]`` once for each of the query heads that share them: ``[B, Hq, R, D]``."""
    times = num_heads // k.shape[1]
    if times == 1:
        return k, v
    return k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)

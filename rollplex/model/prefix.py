"""The prompt forward: vision tower and text layers, in ticks of one layer.

Prompts of a microbatch are padded on the right. Attention is causal, so padding can never reach a real token and needs
no mask. In the last layer only keys and values of every position and the last token's output are wanted, and only they
are computed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from rollplex.boundary import Boundary, PrefixOutput, Tape
from rollplex.memory.arena import Arena
from rollplex.model.again import made_again
from rollplex.model.attention import per_query_head
from rollplex.model.model import Model
from rollplex.model.scores import prescaled
from rollplex.model.text import TextLayer
from rollplex.prompts import Prompt, PromptBatch
from rollplex.saved import Keeping, SavedTensors

TapePolicy = Literal["keep", "offload", "recompute", "checkpoint"]
"""What happens to the prefix's saved tensors until its suffix: kept, moved to the host, dropped, or one a layer kept."""


def boundaries(
    model: Model,
    prompts: PromptBatch,
    *,
    attached: bool,
    microbatch_tokens: int,
    tape: TapePolicy = "keep",
    keeping: Keeping | None = None,
    arena: Arena | None = None,
    owner: str = "policy.boundary",
    logprobs_owner: str | None = None,
) -> Generator[str, None, tuple[Boundary, ...]]:
    """Run the prefix of every prompt, prompts of like length together.

    ``keeping`` is where saved tensors wait; ``arena`` counts the boundaries, as ``owner``'s, and what first
    log-probabilities are made of as ``logprobs_owner``'s, if that is another.
    """
    made = []
    for indices in prompts.microbatches(microbatch_tokens):
        batch = [prompts[i] for i in indices]
        again = partial(prefix_forward, model, batch, attached=True, checkpointed=tape == "checkpoint", keeping=keeping)
        if attached and tape != "recompute":
            output = yield from again()
            way_back = Tape(again, output.tensors, output.saved_bytes)
        else:
            output = yield from prefix_forward(model, batch, attached=False)
            way_back = Tape(again) if attached else None
        boundary = _boundary(model, batch, indices, output, way_back)
        made.append(boundary if arena is None else boundary.charged(arena, owner, logprobs_owner or owner))
    return tuple(made)


def _boundary(
    model: Model, batch: Sequence[Prompt], indices: Sequence[int], output: PrefixOutput, tape: Tape | None
) -> Boundary:
    attached = tape is not None
    detached = [t.detach().requires_grad_(attached) for t in output.tensors]
    num = len(output.keys)
    return Boundary(
        prompts=tuple(indices),
        lengths=torch.tensor([p.length for p in batch], device=model.device),
        padded=len({p.length for p in batch}) > 1,
        next_positions=torch.tensor([p.next_position for p in batch], device=model.device),
        output=PrefixOutput(
            keys=tuple(detached[:num]), values=tuple(detached[num : 2 * num]), last_hidden=detached[-1]
        ),
        tape=tape,
        gradients=tuple(torch.zeros_like(t, dtype=model.wide) for t in detached) if attached else (),
    )


def prefix_forward(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    attached: bool,
    checkpointed: bool = False,
    keeping: Keeping | None = None,
) -> Generator[str, None, PrefixOutput]:
    """Run the prefix of a microbatch; the generator's value is what it leaves behind.

    ``attached`` keeps the autograd graph; ``checkpointed`` keeps only each layer's input in it; ``keeping`` says where
    what is kept waits: keys and values, which the boundary needs, on the device in any case.
    """
    # Autograd's mode belongs to the thread, not to this generator: it must never be changed across a yield.
    saved = SavedTensors(model.leaves.values(), keeping=keeping)
    mode = saved.counting if attached else torch.no_grad
    with mode():
        x = model.embed(prompts, checkpointed=checkpointed)
        positions = nn.utils.rnn.pad_sequence([p.positions.T for p in prompts], batch_first=True)
        cos, sin = model.text.rotary.angles(positions.permute(2, 0, 1).to(model.device), x.dtype)
        cos, sin = cos[:, :, None], sin[:, :, None]
        last = torch.tensor([p.length - 1 for p in prompts], device=model.device)
    saved.settle()
    yield "vision and embedding"
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for index, layer in enumerate(model.text.layers):
        final = index == len(model.text.layers) - 1
        with mode():
            run = partial(_last_layer, layer, last=last) if final else partial(_layer, layer)
            x, k, v = made_again(run, x, cos, sin) if checkpointed else run(x, cos, sin)
        keys.append(k)
        values.append(v)
        saved.settle(resident=(k, v))
        yield f"layer {index}"
    with mode():
        last_hidden = model.text.norm(x)
    saved.settle()
    return PrefixOutput(
        keys=tuple(keys),
        values=tuple(values),
        last_hidden=last_hidden,
        saved_bytes=0 if saved.keeping.arena is not None else saved.nbytes,  # an arena counts for itself
    )


def _layer(
    layer: TextLayer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (t.transpose(1, 2) for t in layer.project(x, cos, sin))
    k, v = _kept(k, v)
    q, scale = prescaled(q)
    attended = scaled_dot_product_attention(q, *per_query_head(k, v, layer.num_heads), is_causal=True, scale=scale)
    return layer.finish(x, attended.transpose(1, 2).flatten(2)), k, v


def _last_layer(
    layer: TextLayer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, last: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values ``[n, H, P, D]`` of every position; the output ``[n, d]`` of each prompt's last token only."""
    rows = torch.arange(len(x), device=x.device)
    k, v = _kept(*(t.transpose(1, 2) for t in layer.keys_values(x, cos, sin)))
    x, cos, sin = (t[rows, last][:, None] for t in (x, cos, sin))
    q, scale = prescaled(layer.project(x, cos, sin)[0].transpose(1, 2))
    seen = torch.arange(k.shape[2], device=x.device) <= last[:, None]
    attended = scaled_dot_product_attention(
        q, *per_query_head(k, v, layer.num_heads), attn_mask=seen[:, None, None], scale=scale
    )
    return layer.finish(x, attended.transpose(1, 2).flatten(2))[:, 0], k, v


def _kept(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as storages of their own: views would keep the whole projection alive with the boundary."""
    return k.contiguous(), v.contiguous()

"""What autograd saves of a suffix and of the vision tower, and what a backward pass needs besides, by arithmetic.

It knows a model's shapes. It measures nothing and moves nothing.

Shapes: d hidden, q and k widths of queries and keys, f feed-forward width, V vocabulary; e and g widths of the vision
tower.
"""

from __future__ import annotations

from rollplex.model.model import Model
from rollplex.prompts import PromptBatch


def suffix_activations(model: Model, rows: int, length: int, *, checkpointed: bool = False) -> int:
    """Bytes that autograd saves of a microbatch of responses of one length; all but the last token enter the layers.

    A layer saves, for each token: around each of the two norms its input, its normalized input and its output (6 d), the
    turned queries and keys (q + k), the fused projection that values are a part of (q + 2 k), the attention's output (q),
    gate with up, one factor and the product (4 f), and single numbers of the norms and the attention. Then the last norm
    (2 d) and the rotary angles; for each predicted token its hidden state (d) and its distribution (V). Checkpointed, each
    layer saves its input, and beside those are either what comes after the layers, or, later, the rest of one layer.
    """
    text = model.text
    layer, d = text.layers[0], text.hidden_size
    q, k = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    f = layer.down.weight.shape[1]
    per_layer = 6 * d + 3 * q + 3 * k + 4 * f + layer.num_heads + 2
    angles, inputs, after = 2 * layer.head_dim, len(text.layers) * d, 2 * d + 1
    entering, item = rows * (length - 1), model.dtype.itemsize
    head = rows * length * (d * item + text.vocabulary_size * model.wide.itemsize)
    if checkpointed:
        return max(entering * (inputs + after) * item + head, entering * (inputs + per_layer - d + angles) * item)
    return entering * (len(text.layers) * per_layer + after + angles) * item + head


def suffix_workspace(model: Model, rows: int, length: int) -> int:
    """Bytes that the backward pass of such a microbatch needs at once besides what was saved: gradients on their way.

    Of the distributions: two of V a token, or one and that of the head's weight. Of a layer: two of f a token and that of
    its largest weight, before it is added to where it belongs.
    """
    item, layer = model.dtype.itemsize, model.text.layers[0]
    distribution = rows * length * model.text.vocabulary_size * model.wide.itemsize
    inside = 2 * rows * length * layer.down.weight.shape[1] * item + layer.gate_up.weight.numel() * item
    return max(2 * distribution, distribution + model.text.head.weight.numel() * item, inside)


def prefix_workspace(model: Model) -> int:
    """Bytes that the backward pass of a prefix needs at once besides what was saved: the largest weight's gradient."""
    return max(leaf.nbytes for leaf in model.leaves.values())


def vision_activations(model: Model, prompts: PromptBatch, microbatch_tokens: int) -> int:
    """Bytes that autograd saves of the vision tower, the largest piece of a prefix, before they are offloaded.

    A block saves, for each patch: around both norms 6 e, then of the attention queries, keys and values with the
    projection that they are a part of (5 e), or copies of them where a whole frame is attended to (3 e), the output
    and its rearranged copy (2 e), and of the feed-forward part 4 g. Before the blocks come the pixels, after them the
    merger (5 e).
    """
    tower = model.vision
    e, g = tower.patch_embed.shape[0], tower.blocks[0].down.weight.shape[1]
    blocks = sum((11 if block.full_attention else 13) * e + 4 * g + block.num_heads + 2 for block in tower.blocks)
    per_patch = tower.patch_embed[0].numel() + blocks + 5 * e + 1 + 2 * e // tower.blocks[0].num_heads
    patches = [len(p.pixel_values) + len(p.pixel_values_videos) for p in prompts]
    most = max(sum(patches[i] for i in indices) for indices in prompts.microbatches(microbatch_tokens))
    return most * per_patch * model.dtype.itemsize

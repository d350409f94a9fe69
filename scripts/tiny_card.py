"""The README of the shipped model's directory."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import Qwen2_5_VLForConditionalGeneration

CARD = """\
# A tiny Qwen2.5-VL

{parameters:,} parameters in transformers' `Qwen2_5_VLForConditionalGeneration`: {layers} text layers of width {width} with
{heads} query heads on {kv_heads} key/value heads, tied embeddings, {depth} vision blocks, windows of 112 pixels in all but the last. The
tokenizer works on bytes, so any text can be encoded, and holds the words and numbers of `rollplex.tasks` as single tokens.
Weights are stored in bfloat16 and load as float32. Training kept its logits small and left it undecided after random words, so that
two correct implementations in float32 agree closely.

It was warm-started on `Digits` and `Clips` by supervised training and stopped early, on purpose. In its last {quick} steps, {share:.0%} of
the reference responses answered at once, without reading the digits first, which a model of this size cannot do well: it writes
responses of the right form, and most of its answers are wrong. Reinforcement learning finds that reading first pays. It is a
starting point for that and of no other use.

    {command}

Training ran for {steps} + {quick} steps, on handwriting that the held-out rows never show:

| held-out rows | answers | accuracy | right form | median length |
|---|---|---|---|---|
{table}

Handwriting: the digits data set of scikit-learn (Alpaydin and Kaynak, UCI, CC BY 4.0). License: Apache-2.0, as the rest.
"""


def card(
    model: Qwen2_5_VLForConditionalGeneration,
    rows: Sequence[str],
    *,
    command: str,
    steps: int,
    quick: int,
    share: float,
) -> str:
    """The README of the directory."""
    text, vision = model.config.text_config, model.config.vision_config
    return CARD.format(
        parameters=model.num_parameters(),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads,
        depth=vision.depth,
        command=command,
        steps=steps,
        quick=quick,
        share=share,
        table="\n".join(rows),
    )

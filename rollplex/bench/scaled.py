"""A model of the shipped family and vocabulary in another size, with random weights: for benches of memory, not of skill."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig, Qwen2_5_VLForConditionalGeneration

from rollplex.ingest import Ingest
from rollplex.model.model import Model
from rollplex.policy import TINY, Policy

HEAD = 64
"""Size of an attention head."""


def scaled_policy(hidden: int, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Policy:
    """The shipped shape with a text part ``hidden`` wide, feed-forward three times that, and as many key heads as heads.

    >>> scaled_policy(64).model.text.hidden_size
    64
    """
    if hidden < HEAD or hidden % HEAD:
        raise ValueError(f"making a scaled model: hidden is {hidden}; it must be a multiple of {HEAD}")
    config: Any = AutoConfig.from_pretrained(TINY)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size = hidden, 3 * hidden
    text.num_attention_heads = text.num_key_value_heads = hidden // HEAD
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [HEAD // 8, 3 * HEAD // 16, 3 * HEAD // 16]}
    vision.out_hidden_size = hidden
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: Any = Qwen2_5_VLForConditionalGeneration(config)
    module.generation_config = GenerationConfig.from_model_config(config)
    return Policy(Model.of(module.to(dtype)), Ingest.from_pretrained(TINY, config))

"""A policy whose heads divide among four ranks, with fewer key/value heads than ranks; random weights, the shipped tokenizer."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from rollplex.ingest import Ingest
from rollplex.model.model import Model
from rollplex.policy import TINY, Policy


@cache
def wide(dtype: torch.dtype = torch.float64) -> Policy:
    """Eight query heads, two key/value heads, two layers."""
    config: Any = AutoConfig.from_pretrained(TINY)
    text = config.text_config
    text.num_attention_heads, text.num_key_value_heads, text.num_hidden_layers = 8, 2, 2
    text.layer_types = text.layer_types[:2]
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [2, 5, 5]}
    module = AutoModelForImageTextToText.from_config(config).to(dtype)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randn(parameter.shape, generator=random)
            parameter.copy_(drawn / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 1 + 0.1 * drawn)
    return Policy(Model.of(module), Ingest.from_pretrained(TINY, module.config))

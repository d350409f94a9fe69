"""Qwen2.5-VL: where transformers' module keeps each weight. The only file that knows the family's names."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

from rollplex.model.fuse import Fused, Linear
from rollplex.model.norm import Norm
from rollplex.model.rotary import TextRotary
from rollplex.model.text import TextLayer, TextModel
from rollplex.model.vision import VisionBlock, VisionTower

TEXT = "model.language_model"
VISION = "model.visual"


def text_model(module: Qwen2_5_VLForConditionalGeneration, fused: Fused) -> TextModel:
    """The text part of a module, its parameters moved into fused storages."""
    text: Any = module.config.text_config
    if text.use_sliding_window:
        raise ValueError(
            "reading the text layers of a Qwen2.5-VL: the config has use_sliding_window=True, and the lean forward "
            "attends to the whole context. Set use_sliding_window=False if the checkpoint was trained without it."
        )
    inner = module.get_submodule(TEXT)
    words: Any = inner.get_submodule("embed_tokens")
    embedding = fused.vector(f"{TEXT}.embed_tokens", words)
    if module.config.tie_word_embeddings:
        head = Linear(embedding, None)
        module.lm_head.register_parameter("weight", words.get_parameter("weight"))
    else:
        head = Linear(fused.vector("lm_head", module.lm_head), None)
    rotary: Any = inner.get_submodule("rotary_emb")
    return TextModel(
        embedding=embedding,
        padding_id=words.padding_idx,
        layers=tuple(_text_layer(inner, fused, text, i) for i in range(text.num_hidden_layers)),
        norm=Norm(fused.vector(f"{TEXT}.norm", inner.get_submodule("norm")), text.rms_norm_eps),
        head=head,
        rotary=TextRotary(
            inv_freq=rotary.get_buffer("inv_freq").float(),
            scaling=float(rotary.attention_scaling),
            sections=tuple(text.rope_parameters["mrope_section"]),
        ),
    )


def _text_layer(inner: nn.Module, fused: Fused, text: Any, index: int) -> TextLayer:
    name = f"{TEXT}.layers.{index}"
    layer = inner.get_submodule(f"layers.{index}")
    attention, mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
    eps = text.rms_norm_eps
    return TextLayer(
        input_norm=Norm(fused.vector(f"{name}.input_layernorm", layer.get_submodule("input_layernorm")), eps),
        qkv=fused.fuse(f"{name}.self_attn", attention, ["q_proj", "k_proj", "v_proj"], "qkv_proj"),
        out=fused.single(f"{name}.self_attn", attention, "o_proj"),
        mlp_norm=Norm(
            fused.vector(f"{name}.post_attention_layernorm", layer.get_submodule("post_attention_layernorm")), eps
        ),
        gate_up=fused.fuse(f"{name}.mlp", mlp, ["gate_proj", "up_proj"], "gate_up_proj"),
        down=fused.single(f"{name}.mlp", mlp, "down_proj"),
        num_heads=text.num_attention_heads,
        num_kv_heads=text.num_key_value_heads,
        head_dim=text.hidden_size // text.num_attention_heads,
    )


def vision_tower(module: Qwen2_5_VLForConditionalGeneration, fused: Fused) -> VisionTower:
    """The vision tower of a module, its parameters moved into fused storages."""
    config: Any = module.config.vision_config
    visual = module.get_submodule(VISION)
    merger = visual.get_submodule("merger")
    return VisionTower(
        patch_embed=fused.vector(f"{VISION}.patch_embed.proj", visual.get_submodule("patch_embed.proj")),
        blocks=tuple(_vision_block(visual, fused, config, i) for i in range(config.depth)),
        merge_norm=Norm(fused.vector(f"{VISION}.merger.ln_q", merger.get_submodule("ln_q")), 1e-6),
        merge_in=fused.single(f"{VISION}.merger", merger, "mlp.0"),
        merge_out=fused.single(f"{VISION}.merger", merger, "mlp.2"),
        inv_freq=visual.get_submodule("rotary_pos_emb").get_buffer("inv_freq").float(),
        merge_size=config.spatial_merge_size,
        window_units=config.window_size // config.spatial_merge_size // config.patch_size,
    )


def _vision_block(visual: nn.Module, fused: Fused, config: Any, index: int) -> VisionBlock:
    name = f"{VISION}.blocks.{index}"
    block = visual.get_submodule(f"blocks.{index}")
    attention, mlp = block.get_submodule("attn"), block.get_submodule("mlp")
    return VisionBlock(
        norm1=Norm(fused.vector(f"{name}.norm1", block.get_submodule("norm1")), 1e-6),
        qkv=fused.single(f"{name}.attn", attention, "qkv"),
        out=fused.single(f"{name}.attn", attention, "proj"),
        norm2=Norm(fused.vector(f"{name}.norm2", block.get_submodule("norm2")), 1e-6),
        gate_up=fused.fuse(f"{name}.mlp", mlp, ["gate_proj", "up_proj"], "gate_up_proj"),
        down=fused.single(f"{name}.mlp", mlp, "down_proj"),
        num_heads=config.num_heads,
        full_attention=index in config.fullatt_block_indexes,
    )

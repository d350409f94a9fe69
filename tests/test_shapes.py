"""Shapes from configs equal the real module's, and the published counts."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

import rollplex
from rollplex.published import PUBLISHED, shape
from rollplex.shapes import ModelShape

TINY = Path(rollplex.__file__).parent / "assets" / "tiny-qwen2_5_vl"


def module_shapes(config: Qwen2_5_VLConfig) -> list[tuple[str, tuple[int, ...]]]:
    with torch.device("meta"):
        module = Qwen2_5_VLForConditionalGeneration(config)
    return [(name, tuple(parameter.shape)) for name, parameter in module.named_parameters()]


def config_of(model: ModelShape, layers: int, blocks: int) -> Qwen2_5_VLConfig:
    """A transformers config of a published width, cut to a few layers."""
    t, v = model.text, model.vision
    heads = {"num_attention_heads": t.num_heads, "num_key_value_heads": t.num_kv_heads}
    text = {"hidden_size": t.hidden_size, "num_hidden_layers": layers, "intermediate_size": t.intermediate_size}
    vision = {"depth": blocks, "hidden_size": v.hidden_size, "intermediate_size": v.intermediate_size}
    return Qwen2_5_VLConfig(
        text_config={**text, **heads, "vocab_size": t.vocabulary_size},
        vision_config={**vision, "num_heads": v.num_heads, "out_hidden_size": v.out_size},
        tie_word_embeddings=t.tied,
    )


def test_the_tiny_models_shapes_are_the_modules_own_in_order() -> None:
    config = AutoConfig.from_pretrained(TINY)
    ours = [(p.name, p.shape) for p in ModelShape.from_config(config).parameters()]
    assert ours == module_shapes(config)


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda m: m.name)
def test_a_published_models_shapes_are_the_modules_own_in_order(model: ModelShape) -> None:
    config = config_of(model, layers=2, blocks=2)
    ours = [(p.name, p.shape) for p in ModelShape.from_config(config).parameters()]
    assert ours == module_shapes(config)
    full = {(p.name, p.shape) for p in model.parameters()}
    assert full.issuperset(ours)


@pytest.mark.parametrize(
    ("name", "published"),
    # The totals shown with the safetensors files of the checkpoints.
    [("3B", 3_754_622_976), ("7B", 8_292_166_656), ("32B", 33_452_718_336), ("72B", 73_410_777_344)],
)
def test_counts_equal_the_published_ones(name: str, published: int) -> None:
    assert shape(f"Qwen2.5-VL-{name}").num_parameters() == published


def test_parts_make_the_whole() -> None:
    model = shape("Qwen2.5-VL-32B")
    assert model.num_parameters("language") == 32_763_876_352
    assert model.num_parameters("language") + model.num_parameters("vision") == model.num_parameters()


def test_operations_are_two_for_each_matrix_element() -> None:
    model = shape("Qwen2.5-VL-7B")
    matrices = sum(p.num_elements for p in model.parameters("language") if p.kind == "matrix")
    assert model.text.flops_per_token() == 2 * matrices
    assert model.text.flops_per_token(10) - model.text.flops_per_token() == 28 * 10 * 4 * 3584


def test_vision_operations_without_attention_are_two_for_each_use_of_a_matrix_element() -> None:
    model = shape("Qwen2.5-VL-7B")
    vision = [p for p in model.parameters("vision") if p.kind in ("matrix", "convolution")]
    merger = sum(p.num_elements for p in vision if p.role == "merger")
    patchwise = sum(p.num_elements for p in vision) - merger
    attention = 4 * 4 * 1280 * 32 * 64
    assert model.vision.flops_per_token() == 2 * (4 * patchwise + merger) + attention


def test_an_unknown_model_is_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match=r"known are Qwen2\.5-VL-3B.*from_config"):
        shape("Qwen2.5-VL-8B")


def test_another_family_is_refused() -> None:
    with pytest.raises(ValueError, match="only Qwen2_5_VLConfig is known"):
        ModelShape.from_config(AutoConfig.for_model("qwen2"))

"""Which models are read, which are refused, and what their prompts become."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_policy import prompts, tiny
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2_5_VLForConditionalGeneration

from rollplex.model.model import Model, eos_ids
from rollplex.policy import TINY


def small(change: Callable[[Any], None]) -> Qwen2_5_VLForConditionalGeneration:
    """One layer of the shipped shape, with a changed config."""
    config: Any = tiny().model.module.config.__class__.from_pretrained(TINY)
    config.text_config.num_hidden_layers = 1
    config.text_config.layer_types = ["full_attention"]
    change(config)
    return Qwen2_5_VLForConditionalGeneration(config)


def test_another_class_is_refused() -> None:
    """The message names what was found and what is known."""
    module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, pad_token_id=0
        )
    )
    with pytest.raises(ValueError, match=r"found LlamaForCausalLM, and the families known here are: Qwen2\.5-VL"):
        Model.of(module)


def test_a_sliding_window_is_refused() -> None:
    """The lean forward attends to everything, so it would compute something else."""

    def slide(config: Any) -> None:
        config.text_config.use_sliding_window = True
        config.text_config.sliding_window = 4
        config.text_config.max_window_layers = 0

    with pytest.raises(ValueError, match="use_sliding_window=True"):
        Model.of(small(slide))


def test_a_parameter_without_a_place_is_refused() -> None:
    """A weight that nobody would train is not passed over."""
    module = small(lambda config: None)
    module.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match=r"no place for parameters \['extra'\]"):
        Model.of(module)


def test_every_parameter_has_a_place() -> None:
    """The control of the test above."""
    module = small(lambda config: None)
    names = set(dict(module.named_parameters()))
    assert Model.of(module).fused.places.keys() == names


def generating(ids: Any, of_config: Any = None) -> Any:
    generation = None if ids == "no config" else SimpleNamespace(eos_token_id=ids)
    text = SimpleNamespace(eos_token_id=of_config)
    return SimpleNamespace(generation_config=generation, config=SimpleNamespace(get_text_config=lambda: text))


@pytest.mark.parametrize(
    ("ids", "of_config", "expected"),
    [([2, 0], 5, (2, 0)), (7, 5, (7,)), (None, 5, (5,)), ("no config", [5, 6], (5, 6))],
    ids=["list", "number", "from the model config", "without a generation config"],
)
def test_every_end_token_is_read(ids: Any, of_config: Any, expected: tuple[int, ...]) -> None:
    """From the generation config, or from the model's where that names none."""
    assert eos_ids(generating(ids, of_config)) == expected


def test_a_model_without_end_tokens_is_refused() -> None:
    """Responses would never end."""
    with pytest.raises(ValueError, match=r"Set module\.generation_config\.eos_token_id"):
        eos_ids(generating(None))


def test_visual_tokens_take_the_places_of_their_placeholders() -> None:
    """Images and videos each go where the prompt has them, across a padded batch."""
    model = tiny().model
    batch = [*prompts("mixed"), *prompts("several images of different sizes")]
    config: Any = model.module.config
    with torch.no_grad():
        x = model.embed(batch)
        for row, prompt in zip(x, batch, strict=True):
            for token, patches, grids in (
                (config.image_token_id, prompt.pixel_values, prompt.image_grid_thw),
                (config.video_token_id, prompt.pixel_values_videos, prompt.video_grid_thw),
            ):
                places = (prompt.input_ids == token).nonzero()[:, 0]
                if len(grids):
                    assert torch.allclose(row[places], model.vision(patches, grids), atol=1e-10)
                else:
                    assert len(places) == 0


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
    ids=str,
)
def test_sums_are_taken_in_float32_or_wider(dtype: torch.dtype, wide: torch.dtype) -> None:
    """Whatever the weights are."""
    assert tiny(dtype).model.wide == wide

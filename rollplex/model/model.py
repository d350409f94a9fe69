"""A vision-language model as the lean forward sees it: fused weights, the family's details, and what to embed.

It knows how prompts become hidden states. It does not know about phases, engines or optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from rollplex.model import qwen2_5_vl
from rollplex.model.fuse import Fused
from rollplex.model.text import TextModel
from rollplex.model.vision import VisionTower
from rollplex.prompts import Prompt


@dataclass(frozen=True, eq=False)
class Model:
    """Weights and token ids of one model.

    ``module`` is transformers' own; its parameters are views of the fused leaves, so what one changes the other has.
    """

    module: PreTrainedModel
    """transformers' model, for saving and for comparing."""
    text: TextModel
    """The text part."""
    vision: VisionTower
    """The vision tower."""
    fused: Fused
    """The distinct weights by name."""
    placeholder_ids: tuple[int, ...]
    """Ids that stand for visual tokens: never sampled, never embedded as text."""
    eos_ids: tuple[int, ...]
    """Every id that ends a response."""
    pad_id: int
    """Fills places that nothing reads."""

    @classmethod
    def of(cls, module: PreTrainedModel) -> Model:
        """Take a transformers model over: its parameters become views of fused storages."""
        if not isinstance(module, Qwen2_5_VLForConditionalGeneration):
            raise ValueError(
                f"reading a model: found {type(module).__name__}, and the families known here are: Qwen2.5-VL. "
                "Another family needs an adapter beside rollplex/model/qwen2_5_vl.py."
            )
        module.eval()
        fused = Fused()
        text, vision = qwen2_5_vl.text_model(module, fused), qwen2_5_vl.vision_tower(module, fused)
        missing = set(dict(module.named_parameters())) - set(fused.places)
        if missing:
            raise ValueError(f"reading {type(module).__name__}: no place for parameters {sorted(missing)}")
        config = module.config
        eos = eos_ids(module)
        return cls(
            module=module,
            text=text,
            vision=vision,
            fused=fused,
            placeholder_ids=(config.image_token_id, config.video_token_id),
            eos_ids=eos,
            pad_id=eos[0],
        )

    @property
    def leaves(self) -> dict[str, torch.Tensor]:
        """Name -> distinct weight."""
        return self.fused.leaves

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.text.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.text.embedding.device

    @property
    def wide(self) -> torch.dtype:
        """Type in which sums over responses are accumulated: float32, or float64 for a float64 model."""
        return torch.promote_types(self.dtype, torch.float32)

    def named_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """transformers' parameter names with their part of the fused gradients."""
        for name, (leaf, rows) in self.fused.places.items():
            gradient = self.leaves[leaf].grad
            if gradient is not None:
                yield name, gradient[rows]

    def embed(self, prompts: Sequence[Prompt], *, checkpointed: bool = False) -> torch.Tensor:
        """Inputs of the first text layer ``[n, P, d]``, prompts padded on the right, visual tokens filled in."""
        ids = nn.utils.rnn.pad_sequence([p.input_ids for p in prompts], batch_first=True, padding_value=self.pad_id)
        ids = ids.to(self.device)
        x = self.text.embed(ids)
        config = cast(Qwen2_5_VLConfig, self.module.config)
        for token, pixels, grids in (
            (config.image_token_id, [p.pixel_values for p in prompts], [p.image_grid_thw for p in prompts]),
            (config.video_token_id, [p.pixel_values_videos for p in prompts], [p.video_grid_thw for p in prompts]),
        ):
            grid = torch.cat(grids)
            if len(grid):
                features = self.vision(torch.cat(pixels).to(self.device), grid, checkpointed=checkpointed)
                x = x.masked_scatter((ids == token)[..., None], features.to(x.dtype))
        return x


def eos_ids(module: PreTrainedModel) -> tuple[int, ...]:
    """Every end-of-sequence id that the generation config (or, without one, the model config) names."""
    generation: GenerationConfig | None = module.generation_config  # type: ignore[assignment]
    found = None if generation is None else generation.eos_token_id
    if found is None:
        found = module.config.get_text_config().eos_token_id
    if found is None:
        raise ValueError(
            "reading a model: neither its generation config nor its text config names an eos_token_id. "
            "Set module.generation_config.eos_token_id."
        )
    return tuple(found) if isinstance(found, list | tuple) else (int(cast(int, found)),)

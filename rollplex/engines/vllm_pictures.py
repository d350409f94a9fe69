"""The pictures of a prompt as an engine takes them: tensors by name, and where each picture's tokens lie.

It knows the names that Qwen2.5-VL's inputs have in every engine; whoever hands them over knows the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from rollplex.model.model import Model
from rollplex.positions import num_visual_tokens
from rollplex.prompts import Prompt

Modality = Literal["image", "video"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """All images, or all videos, of one prompt."""

    modality: Modality
    """Which of the two."""
    values: dict[str, torch.Tensor]
    """Patches (or features), one picture after the other, by the name of the input."""
    sizes: torch.Tensor
    """``[pictures]`` rows of ``values`` that belong to each."""
    each: dict[str, torch.Tensor]
    """What has one entry a picture: grids, and seconds for videos."""
    ranges: tuple[tuple[int, int], ...]
    """(first token, number of tokens) of each in the prompt."""

    @classmethod
    def of(cls, prompt: Prompt, model: Model, *, features: bool) -> Iterator[Pictures]:
        """The images and the videos of a prompt, where there are any.

        With ``features`` the model's tower runs, and patches are replaced by what it makes of them.
        """
        config = model.module.config
        kinds: tuple[tuple[Modality, int, torch.Tensor, torch.Tensor], ...] = (
            ("image", config.image_token_id, prompt.pixel_values, prompt.image_grid_thw),
            ("video", config.video_token_id, prompt.pixel_values_videos, prompt.video_grid_thw),
        )
        for modality, token_id, pixels, grids in kinds:
            if len(grids):
                yield cls._of(prompt, model, modality, token_id, pixels, grids, features)

    @classmethod
    def _of(
        cls,
        prompt: Prompt,
        model: Model,
        modality: Modality,
        token_id: int,
        pixels: torch.Tensor,
        grids: torch.Tensor,
        features: bool,
    ) -> Pictures:
        tokens = [num_visual_tokens(grid, model.vision.merge_size) for grid in grids]
        values = {"pixel_values" if modality == "image" else "pixel_values_videos": pixels}
        if features:
            with torch.no_grad():
                values = {f"{modality}_embeds": model.vision(pixels.to(model.device), grids)}
        each = {f"{modality}_grid_thw": grids}
        if modality == "video":
            each["second_per_grid_ts"] = torch.tensor(prompt.second_per_grid_ts)
        places = (prompt.input_ids == token_id).nonzero()[:, 0].split(tokens)
        return cls(
            modality=modality,
            values=values,
            sizes=torch.tensor(tokens) if features else grids.prod(-1),
            each=each,
            ranges=tuple((int(place[0]), len(place)) for place in places),
        )

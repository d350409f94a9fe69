"""The canonical prompt: what a row of a data set becomes once, at ingestion, for every consumer.

Shapes: T text tokens, P prompt tokens (placeholders expanded), S patches, C values in a patch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompt:
    """One prompt, ready for the vision tower, the text layers and the engine alike."""

    row: Mapping[str, Any]
    """The data set's row it was made of; its other columns reach the reward functions."""
    messages: tuple[Mapping[str, Any], ...]
    """Conversation with structured content: images and videos are content blocks, never text."""
    text_ids: torch.Tensor
    """``[T]`` int64, one placeholder for each image or video."""
    input_ids: torch.Tensor
    """``[P]`` int64, one placeholder for each visual token."""
    positions: torch.Tensor
    """``[3, P]`` int64, M-RoPE positions (temporal, height, width)."""
    next_position: int
    """Position of the first response token: one past the largest position, not P."""
    pixel_values: torch.Tensor
    """``[S, C]`` float32, patches of all images, in order; ``[0, C]`` without images."""
    image_grid_thw: torch.Tensor
    """``[num_images, 3]`` int64, patches along time, height and width of each image."""
    pixel_values_videos: torch.Tensor
    """``[S, C]`` float32, patches of all videos."""
    video_grid_thw: torch.Tensor
    """``[num_videos, 3]`` int64."""
    second_per_grid_ts: tuple[float, ...]
    """Seconds between temporal patches, one for each video."""

    @cached_property
    def pixel_hash(self) -> str:
        """Hash of all pixel values and grids: equal pixels, equal hash, on every path.

        Made when first asked for: on a picture of 500 visual tokens it costs as much as the rest of ingestion.
        """
        return hash_pixels(self.pixel_values, self.image_grid_thw, self.pixel_values_videos, self.video_grid_thw)

    @property
    def length(self) -> int:
        """P, prompt tokens."""
        return self.input_ids.numel()

    @property
    def num_images(self) -> int:
        """Images in the prompt."""
        return self.image_grid_thw.shape[0]

    @property
    def num_videos(self) -> int:
        """Videos in the prompt."""
        return self.video_grid_thw.shape[0]

    def __repr__(self) -> str:
        return f"Prompt({self.length} tokens, {self.num_images} images, {self.num_videos} videos)"


@dataclass(frozen=True, kw_only=True, eq=False)
class Refusal:
    """A row that did not become a prompt, and why."""

    index: int
    """Position of the row among those offered."""
    reason: str
    """What was being done, what was found, what to do."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptBatch:
    """The prompts of one step."""

    prompts: tuple[Prompt, ...]
    """In the order of the rows."""
    refused: tuple[Refusal, ...] = ()
    """Rows left out; a batch never shrinks silently."""
    step: int = 0
    """Index of the training step."""
    seed: int = 0
    """Seed of the run."""

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self.prompts[index]

    def microbatches(self, max_tokens: int) -> list[list[int]]:
        """Indices of prompts to run together: of like length, so that padding is small, and a bounded size.

        A microbatch has at most ``max_tokens`` tokens, padding included, or a single prompt.
        """
        batches: list[list[int]] = []
        for index in sorted(range(len(self)), key=lambda i: self[i].length):
            if not batches or self[index].length * (len(batches[-1]) + 1) > max_tokens:
                batches.append([])
            batches[-1].append(index)
        return batches

    def __repr__(self) -> str:
        return f"PromptBatch({len(self)} prompts, {len(self.refused)} refused, step {self.step})"


def hash_pixels(*tensors: torch.Tensor) -> str:
    """SHA-256 over the shapes and values of patches and grids, so that two paths can be compared by one string.

    >>> hash_pixels(torch.zeros(2)) == hash_pixels(torch.zeros(2)), hash_pixels(torch.zeros(2)) == hash_pixels(torch.zeros(1))
    (True, False)
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()

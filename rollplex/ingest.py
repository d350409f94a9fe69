"""Rows to prompts: rendered, tokenised, patched and placed once, for every consumer.

This file knows the processor of a Hugging Face directory and the model's config. It does not know weights,
tasks or engines. Rules on what a picture becomes are in `images`, on which block holds it in `messages`.

Deviations from calling the processor, all on purpose:

- A special token written out in a message is text: only a content block makes a placeholder.
- Frames are taken as given, never sampled again.
- A prompt over the length limit is refused as a row, never cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jinja2 import TemplateError
from torchvision.transforms.v2.functional import pil_to_tensor

from rollplex.messages import Conversation, broken, token_pattern, unused_mark
from rollplex.positions import Kind, mrope_positions, num_visual_tokens
from rollplex.prompts import Prompt, PromptBatch, Refusal
from rollplex.task import Row
from rollplex.video_time import second_per_grid_ts

if TYPE_CHECKING:
    from PIL import Image
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLProcessor


@dataclass(frozen=True, eq=False)
class Ingest:
    """Makes the canonical prompt of each row with one model's own processor.

    A row has TRL's columns: ``prompt`` (messages, or a plain string without pictures), ``image`` or ``images``,
    ``videos`` (a list of frames for each). For videos, ``fps`` (frames per second of the given frames) or
    ``second_per_grid_ts`` may be one number or one for each video; without either, `DEFAULT_FPS` holds.
    """

    processor: Qwen2_5_VLProcessor
    """Tokenizer, chat template, image and video processor; its pixel limits are the ones that hold."""
    config: Qwen2_5_VLConfig
    """The model's config: placeholder ids, patch and merge sizes, tokens per second."""
    _control: re.Pattern[str] = field(init=False, repr=False)
    _placeholders: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_agreement()
        tokenizer = self.processor.tokenizer
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        placeholders = {self.processor.image_token, self.processor.video_token}
        object.__setattr__(self, "_control", token_pattern({*special, *tokenizer.all_special_tokens, *placeholders}))
        object.__setattr__(self, "_placeholders", token_pattern(placeholders))

    @classmethod
    def from_pretrained(cls, path: str | Path, config: Qwen2_5_VLConfig | None = None) -> Ingest:
        """Read the processor of a Hugging Face directory or hub name; the config too unless one is given."""
        from transformers import AutoConfig, AutoProcessor

        loaded: Any = config or AutoConfig.from_pretrained(path)
        return cls(AutoProcessor.from_pretrained(path), loaded)

    def prompt(self, row: Row, *, where: str = "row") -> Prompt:
        """The prompt of one row; raises `ValueError` that begins with `where` if the row cannot become one."""
        if "prompt" not in row:
            raise ValueError(
                f"{where}: reading 'prompt': found columns {sorted(row)}. Name the column of messages 'prompt'."
            )
        if isinstance(row["prompt"], str):
            conversation = _plain(row, where)
            text_ids = self._plain_ids(row["prompt"])
        else:
            conversation = Conversation.from_row(row, where=where)
            text_ids = self._chat_ids(conversation, where)
        try:
            pixels, image_grid, pixels_videos, video_grid = self._patches(conversation)
        except (ValueError, RuntimeError) as error:
            sizes = [image.size for image in conversation.images] + [video[0].size for video in conversation.videos]
            raise ValueError(f"{where}: patching pictures of sizes {sizes}: {error}") from error
        input_ids, kinds = self._expand(text_ids, image_grid, video_grid, where)
        seconds = second_per_grid_ts(row, len(video_grid), self._vision.temporal_patch_size, where)
        positions, next_position = mrope_positions(
            kinds,
            image_grid,
            video_grid,
            seconds,
            merge=self._vision.spatial_merge_size,
            tokens_per_second=self._vision.tokens_per_second,
        )
        return Prompt(
            row=row,
            messages=conversation.messages,
            text_ids=text_ids,
            input_ids=input_ids,
            positions=positions,
            next_position=next_position,
            pixel_values=pixels,
            image_grid_thw=image_grid,
            pixel_values_videos=pixels_videos,
            video_grid_thw=video_grid,
            second_per_grid_ts=seconds,
        )

    def batch(
        self,
        rows: Sequence[Row],
        *,
        step: int = 0,
        seed: int = 0,
        max_prompt_length: int | None = None,
        bad_rows: Literal["raise", "refuse"] = "raise",
    ) -> PromptBatch:
        """The prompts of a step's rows, in order; each row's prompt is independent of the other rows.

        A prompt longer than ``max_prompt_length`` tokens is always left out and listed in ``refused``. A row that
        cannot become a prompt raises, or with ``bad_rows="refuse"`` is listed too. No prompt at all is an error.
        """
        if bad_rows not in ("raise", "refuse"):
            raise ValueError(f"making prompts: found bad_rows={bad_rows!r}. Use 'raise' or 'refuse'.")
        prompts: list[Prompt] = []
        refused: list[Refusal] = []
        for index, row in enumerate(rows):
            try:
                prompt = self.prompt(row, where=f"row {index}")
            except ValueError as error:
                if bad_rows == "raise":
                    raise
                refused.append(Refusal(index=index, reason=str(error)))
                continue
            if max_prompt_length is not None and prompt.length > max_prompt_length:
                refused.append(Refusal(index=index, reason=_too_long(prompt, index, max_prompt_length)))
            else:
                prompts.append(prompt)
        if not prompts:
            why = f" First refusal: {refused[0].reason}" if refused else " Give at least one row."
            raise ValueError(f"making the prompts of step {step}: found {len(rows)} rows, {len(refused)} refused.{why}")
        return PromptBatch(prompts=tuple(prompts), refused=tuple(refused), step=step, seed=seed)

    def __repr__(self) -> str:
        return f"Ingest({self.config.model_type}, {len(self.processor.tokenizer)} tokens)"

    def decode(self, ids: torch.Tensor) -> str:
        """Text of token ids ``[R]``, special tokens left out."""
        return self.processor.tokenizer.decode(ids, skip_special_tokens=True)

    def save_pretrained(self, path: str | Path) -> None:
        """Write the processor's files."""
        self.processor.save_pretrained(path)

    @property
    def _vision(self) -> Any:
        """The vision part of the config; transformers declares it as any of several types."""
        return self.config.vision_config

    def _check_agreement(self) -> None:
        """Refuse a processor that belongs to another model: its grids would be wrong without any error."""
        if self.config.model_type != "qwen2_5_vl":
            raise ValueError(f"making an Ingest: found model type {self.config.model_type!r}. Supported: 'qwen2_5_vl'.")
        vision, processor = self._vision, self.processor
        pairs = [("image_token_id", processor.image_token_id, self.config.image_token_id)]
        pairs.append(("video_token_id", processor.video_token_id, self.config.video_token_id))
        for part in (processor.image_processor, processor.video_processor):
            name = type(part).__name__
            pairs.append((f"patch_size of {name}", part.patch_size, vision.patch_size))
            pairs.append((f"merge_size of {name}", part.merge_size, vision.spatial_merge_size))
            pairs.append((f"temporal_patch_size of {name}", part.temporal_patch_size, vision.temporal_patch_size))
        pairs.append(("special tokens added to a text", processor.tokenizer.num_special_tokens_to_add(), 0))
        for name, found, wanted in pairs:
            if found != wanted:
                raise ValueError(
                    f"making an Ingest: found {name} = {found} in the processor and {wanted} for the model. "
                    "Take both from one Hugging Face directory."
                )

    def _chat_ids(self, conversation: Conversation, where: str) -> torch.Tensor:
        """``[T]`` ids of the conversation in the directory's chat template."""
        mark = unused_mark(conversation.texts())
        last = conversation.messages[-1]["role"]
        try:
            rendered = self.processor.apply_chat_template(
                conversation.outline(self._control, mark),
                add_generation_prompt=last != "assistant",
                continue_final_message=last == "assistant",
                tokenize=False,
            )
        except TemplateError as error:
            raise ValueError(f"{where}: rendering the chat template: it refused the messages: {error}") from error
        text_ids = self._encode_pieces(rendered.split(mark))
        for token_id, blocks, name in (
            (self.config.image_token_id, conversation.images, "image"),
            (self.config.video_token_id, conversation.videos, "video"),
        ):
            found = int((text_ids == token_id).sum())
            if found != len(blocks):
                raise ValueError(
                    f"{where}: rendering the chat template: found {found} {name} placeholders for {len(blocks)} {name} "
                    f"blocks. Use a template that writes one {name} placeholder for each {name} block and no other."
                )
        return text_ids

    def _plain_ids(self, text: str) -> torch.Tensor:
        """``[T]`` ids of a prompt that the caller rendered: its control tokens hold, but it has no pictures."""
        mark = unused_mark([text])
        return self._encode_pieces(broken([text], self._placeholders, mark)[0].split(mark))

    def _encode_pieces(self, pieces: Sequence[str]) -> torch.Tensor:
        """Ids of a text given in pieces: a token that runs over a border cannot be recognised."""
        tokenizer = self.processor.tokenizer
        ids = [i for piece in pieces if piece for i in tokenizer(piece, add_special_tokens=False)["input_ids"]]
        return torch.tensor(ids, dtype=torch.int64)

    def _patches(self, conversation: Conversation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Patches and grids of the images, then of the videos."""
        vision = self._vision
        no_pixels = torch.empty(0, 3 * vision.temporal_patch_size * vision.patch_size**2)
        no_grid = torch.empty(0, 3, dtype=torch.int64)
        pixels, image_grid, pixels_videos, video_grid = no_pixels, no_grid, no_pixels, no_grid
        if conversation.images:
            made = self.processor.image_processor(images=list(conversation.images), return_tensors="pt")
            pixels, image_grid = made["pixel_values"].float(), made["image_grid_thw"].long()
        if conversation.videos:
            made = self.processor.video_processor(
                videos=[_clip(frames) for frames in conversation.videos],
                do_sample_frames=False,
                # Without it the layout is guessed from the shape, wrongly for frames of 3 or 4 pixels.
                input_data_format="channels_first",
                return_tensors="pt",
            )
            pixels_videos, video_grid = made["pixel_values_videos"].float(), made["video_grid_thw"].long()
        return pixels, image_grid, pixels_videos, video_grid

    def _expand(
        self, text_ids: torch.Tensor, image_grid: torch.Tensor, video_grid: torch.Tensor, where: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``[P]`` ids with one placeholder for each visual token, and the kind of each."""
        if text_ids.numel() == 0:
            raise ValueError(f"{where}: tokenising 'prompt': found 0 tokens. Give a prompt with some text.")
        merge = self._vision.spatial_merge_size
        repeats, kinds = torch.ones_like(text_ids), torch.full_like(text_ids, Kind.TEXT)
        for kind, token_id, grids in (
            (Kind.IMAGE, self.config.image_token_id, image_grid),
            (Kind.VIDEO, self.config.video_token_id, video_grid),
        ):
            places = text_ids == token_id
            repeats[places] = torch.tensor([num_visual_tokens(grid, merge) for grid in grids], dtype=torch.int64)
            kinds[places] = kind
        return text_ids.repeat_interleave(repeats), kinds.repeat_interleave(repeats)


def _plain(row: Row, where: str) -> Conversation:
    """The empty conversation of a plain-string prompt, which has no place for pictures."""
    columns = [name for name in ("image", "images", "videos") if row.get(name)]
    if columns:
        raise ValueError(
            f"{where}: placing pictures: found a plain string as 'prompt' with {', '.join(columns)}. "
            'Give messages instead, e.g. [{"role": "user", "content": "..."}].'
        )
    return Conversation(messages=(), images=(), videos=())


def _clip(frames: Sequence[Image.Image]) -> torch.Tensor:
    """``[frames, 3, height, width]`` uint8."""
    return torch.stack([pil_to_tensor(frame) for frame in frames])


def _too_long(prompt: Prompt, index: int, limit: int) -> str:
    """Why a prompt over the limit was left out, counted by what it consists of."""
    visual = prompt.length - prompt.text_ids.numel() + prompt.num_images + prompt.num_videos
    grids = [tuple(grid) for grid in prompt.image_grid_thw.tolist() + prompt.video_grid_thw.tolist()]
    return (
        f"row {index}: checking its length: found {prompt.length} tokens ({prompt.length - visual} of text, {visual} visual in "
        f"grids {grids}), limit {limit}. Raise max_prompt_length, or lower the processor's size['longest_edge']."
    )

"""A processor directory of a few kilobytes, without weights, and rows to give it.

Text is byte-level; pictures and the form of the template are Qwen2.5-VL's.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from rollplex.prompts import Prompt

SPECIAL = (
    "<|end|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
IMAGE, VIDEO = SPECIAL.index("<|image_pad|>"), SPECIAL.index("<|video_pad|>")

TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- for block in message['content'] -%}
{%- if block['type'] == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif block['type'] == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- else -%}{{ block['text'] }}{%- endif -%}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def make_processor() -> Qwen2_5_VLProcessor:
    """One token a byte, and pictures of 1 to 64 visual tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    size = {"shortest_edge": 28 * 28, "longest_edge": 64 * 28 * 28}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=size),
        tokenizer=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token=SPECIAL[2],
            pad_token=SPECIAL[0],
            extra_special_tokens=list(SPECIAL[1:]),
        ),
        video_processor=Qwen2VLVideoProcessor(size=size, cap_pixels_per_frame=False),
        chat_template=TEMPLATE,
    )


def make_config(**vision: int) -> Qwen2_5_VLConfig:
    """The config that goes with the processor, as far as prompts need it."""
    return Qwen2_5_VLConfig(
        image_token_id=IMAGE, video_token_id=VIDEO, vision_config={"tokens_per_second": 2, **vision}
    )


def make_directory(path: Path) -> Path:
    """Write both, to be read by `AutoProcessor` and `AutoConfig`."""
    make_processor().save_pretrained(path)
    make_config().save_pretrained(path)
    return path


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def clip(num_frames: int, width: int = 56, height: int = 28) -> list[Image.Image]:
    return [picture(width, height, seed) for seed in range(num_frames)]


def ask(text: str = "What is it?", **columns: Any) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": text}], **columns}


def blocks(*content: str, **columns: Any) -> dict[str, Any]:
    """A user message of content blocks: "image" and "video" are slots, anything else is text."""
    made = [{"type": c} if c in ("image", "video") else {"type": "text", "text": c} for c in content]
    return {"prompt": [{"role": "user", "content": made}], **columns}


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def equal(a: Prompt, b: Prompt) -> bool:
    names = (
        "text_ids",
        "input_ids",
        "positions",
        "pixel_values",
        "image_grid_thw",
        "pixel_values_videos",
        "video_grid_thw",
    )
    same = all(torch.equal(vars(a)[name], vars(b)[name]) for name in names)
    return same and a.pixel_hash == b.pixel_hash and a.next_position == b.next_position

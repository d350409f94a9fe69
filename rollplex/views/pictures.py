"""A prompt's pictures at a size for looking at: images as they are, a video as a strip of its frames.

This file knows PIL and PNG. It takes the upright RGB pictures that ingestion made; modes and turns are its business.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from rollplex.prompts import Prompt

_FRAMES = 8
"""Frames of a video that a strip shows, spread evenly from the first to the last."""


def pictures(prompt: Prompt, *, side: int = 224) -> list[Image.Image]:
    """Every image of a prompt and a strip for every video, in the order of its messages, to fit ``side`` pixels."""
    shown = []
    for block in _blocks(prompt):
        if block["type"] == "image":
            shown.append(thumbnail(block["image"], side))
        elif block["type"] == "video":
            shown.append(_strip(block["video"], side))
    return shown


def thumbnail(image: Image.Image, side: int) -> Image.Image:
    """A copy that fits a square of ``side`` pixels, never enlarged.

    >>> thumbnail(Image.new("RGB", (400, 100)), 200).size, thumbnail(Image.new("RGB", (28, 28)), 200).size
    ((200, 50), (28, 28))
    """
    small = image.copy()
    small.thumbnail((side, side))
    return small


def side_by_side(images: Sequence[Image.Image], *, gap: int = 4) -> Image.Image | None:
    """Images in one row on white, top edges level; None without images.

    >>> side_by_side([Image.new("RGB", (10, 8)), Image.new("RGB", (20, 30))]).size
    (34, 30)
    """
    if not images:
        return None
    width = sum(image.width for image in images) + gap * (len(images) - 1)
    sheet = Image.new("RGB", (width, max(image.height for image in images)), "white")
    x = 0
    for image in images:
        sheet.paste(image, (x, 0))
        x += image.width + gap
    return sheet


def data_uri(image: Image.Image) -> str:
    """The image as a ``data:`` address of a PNG, for pages without files.

    >>> data_uri(Image.new("L", (2, 2)))[:22]
    'data:image/png;base64,'
    """
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _blocks(prompt: Prompt) -> Iterator[Mapping[str, Any]]:
    for message in prompt.messages:
        if not isinstance(message["content"], str):
            yield from message["content"]


def _strip(frames: Sequence[Image.Image], side: int) -> Image.Image:
    count = min(_FRAMES, len(frames))
    chosen = [frames[round(i * (len(frames) - 1) / max(1, count - 1))] for i in range(count)]
    strip = side_by_side([thumbnail(frame, side // 2) for frame in chosen], gap=2)
    return strip if strip is not None else Image.new("RGB", (1, 1), "white")

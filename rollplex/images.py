"""What a picture becomes before a processor sees it: upright, RGB, 8 bits, the same on every path.

This file knows PIL modes. It does not know patches, grids or models.

| found | becomes |
|---|---|
| EXIF orientation 1-8 | applied to the pixels, once |
| any kind of transparency: RGBA, RGBa, LA, La, PA, a palette or a colour marked transparent | pasted on white |
| RGB, RGBX, L, 1, P, CMYK, YCbCr, HSV | Pillow's own conversion; colour profiles are not applied |
| I;16, I;16L, I;16B, I;16N: 16-bit grey | the high byte, ``value // 256``, so that white stays white and nothing is clipped |
| I: 32-bit grey | as 16-bit grey if every value is in 0..65535, else refused |
| F: float grey | ``round(255 * value)`` if every value is in [0, 1], else refused |
| LAB and other modes | refused: the right conversion depends on a colour profile |
| more than one frame (GIF, APNG, WebP, AVIF, TIFF) | refused: it is a video, or the caller chooses a frame |
| longer side over 200 times the shorter | refused, as Qwen's processor does; 1x1 and the like are accepted |
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageOps

MAX_ASPECT_RATIO = 200
"""Longest accepted side over the shorter one; the same limit as Qwen's image processor."""

PLAIN_MODES = frozenset({"RGB", "RGBX", "L", "1", "P", "CMYK", "YCbCr", "HSV"})
GREY16_MODES = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})
ANIMATED_FORMATS = frozenset({"GIF", "PNG", "WEBP", "AVIF", "TIFF"})
"""Formats whose further frames are further pictures; an MPO's or an ICO's are other versions of the first one."""

UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises on files that are missing, cut, empty or not pictures."""


def to_rgb(source: Any, *, where: str = "image") -> Image.Image:
    """An upright 8-bit RGB copy of a picture, by the rules of this file; the source is left as it is.

    ``source`` is a PIL image, a path, the bytes of a file, or ``{"bytes": ..., "path": ...}`` as the
    datasets library stores one. ``where`` names it in errors, e.g. ``"row 5, image 2"``.

    >>> to_rgb(Image.new("RGBA", (2, 2), (255, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    image = _open(source, where)
    if image.format in ANIMATED_FORMATS and _has_second_frame(image):
        raise ValueError(
            f"{where}: reading a still picture: found an animated or multi-page {image.format}. "
            "Give its frames as a video, or choose one frame (image.seek(k), then image.copy())."
        )
    try:
        upright = ImageOps.exif_transpose(image)
        upright.load()
    except UNREADABLE as error:
        raise ValueError(
            f"{where}: decoding a {image.format or image.mode} picture: {error}. "
            "The file is cut or damaged; write it again or drop the row."
        ) from error
    _check_shape(upright, where)
    return _convert(upright, where)


def _open(source: Any, where: str) -> Image.Image:
    """The picture behind any accepted source, not decoded yet."""
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, Mapping):
        stored = source.get("bytes") if source.get("bytes") is not None else source.get("path")
        return _open(stored, where)
    if isinstance(source, bytes | bytearray | memoryview):
        name, file = f"{len(source)} bytes", io.BytesIO(source)
    elif isinstance(source, str | os.PathLike):
        name, file = repr(os.fspath(source)), source
    else:
        raise ValueError(
            f"{where}: reading a picture: found {type(source).__name__}. "
            "Give a PIL image, a path, or the bytes of a picture file."
        )
    try:
        return Image.open(file)
    except UNREADABLE as error:
        raise ValueError(
            f"{where}: opening {name} as a picture: {type(error).__name__}: {error}. "
            "Check that the file exists, is complete and is a picture."
        ) from error


def _has_second_frame(image: Image.Image) -> bool:
    """Whether a further frame exists. Seeking is the one question that every Pillow plug-in answers."""
    position = image.tell()
    if position > 0:
        return True
    try:
        image.seek(1)
    except UNREADABLE:
        # The end of the sequence, or a damaged file: decoding will say which.
        image.seek(0)
        return False
    image.seek(0)
    return True


def _check_shape(image: Image.Image, where: str) -> None:
    """Refuse pictures that no processor of the family takes, before it says so without a row."""
    width, height = image.size
    if not (width and height):
        raise ValueError(f"{where}: measuring a picture: found {width}x{height}, which has no pixel. Drop the row.")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise ValueError(
            f"{where}: measuring a picture: found {width}x{height}, an aspect ratio of "
            f"{max(width, height) / min(width, height):.1f}; at most {MAX_ASPECT_RATIO} is accepted. Crop or pad it."
        )


def _convert(image: Image.Image, where: str) -> Image.Image:
    """Upright picture of any mode to RGB."""
    if image.mode in GREY16_MODES:
        return _from_grey16(image, where)
    if image.mode == "F":
        return _from_float(image, where)
    if image.has_transparency_data:
        return _on_white(image)
    if image.mode in PLAIN_MODES:
        return image.convert("RGB")
    raise ValueError(
        f"{where}: converting a picture to RGB: found mode {image.mode!r}, which has no rule. Convert it to RGB first."
    )


def _on_white(image: Image.Image) -> Image.Image:
    """Composite on white: what a person sees on a page, whatever colour hides under transparent pixels."""
    # RGBa and La store colours already multiplied by alpha; Pillow has one way back for each.
    if image.mode == "La":
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _from_grey16(image: Image.Image, where: str) -> Image.Image:
    """16-bit grey to its high byte; Pillow's own conversion would clip everything over 255 to white."""
    values = np.asarray(image).astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ValueError(
            f"{where}: converting 32-bit grey to RGB: found values from {low} to {high}; 0 to 65535 is accepted. "
            "Scale them to that range, or save the picture as RGB."
        )
    grey = (values // 256).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _from_float(image: Image.Image, where: str) -> Image.Image:
    """Float grey in [0, 1] to 0..255; Pillow's own conversion would turn every such value into black."""
    values = np.asarray(image)
    if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
        raise ValueError(
            f"{where}: converting float grey to RGB: found values from {values.min()} to {values.max()}; "
            "finite values in [0, 1] are accepted. Scale them to that range, or save the picture as RGB."
        )
    return Image.fromarray(np.rint(values * 255).astype(np.uint8)).convert("RGB")

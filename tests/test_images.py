"""One rule for each PIL mode, the same for every way in."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from rollplex.images import MAX_ASPECT_RATIO, to_rgb

RED, WHITE, BLACK = (255, 0, 0), (255, 255, 255), (0, 0, 0)
ORIENTATION = 0x0112


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey16(values: list[int], dtype: type = np.uint16) -> Image.Image:
    return Image.fromarray(np.array([values], dtype=dtype))


@pytest.mark.parametrize(
    "mode", ["RGB", "RGBX", "L", "1", "P", "CMYK", "YCbCr", "HSV", "RGBA", "LA", "PA", "RGBa", "La"]
)
def test_an_opaque_white_picture_stays_white_in_every_mode(mode: str) -> None:
    # RGBa and La are reached only through their plain forms, as Pillow has it.
    plain = {"RGBa": "RGBA", "La": "LA", "PA": "P"}.get(mode, mode)
    image = Image.new("RGB", (3, 2), "white").convert(plain).convert(mode)
    assert image.mode == mode
    result = to_rgb(image)
    assert (result.mode, result.size, result.getpixel((2, 1))) == ("RGB", (3, 2), WHITE)


@pytest.mark.parametrize("mode", ["RGB", "P", "CMYK", "RGBA", "YCbCr"])
def test_red_stays_red(mode: str) -> None:
    found = np.array(to_rgb(Image.new("RGB", (2, 2), RED).convert(mode)).getpixel((0, 0)))
    assert np.abs(found - RED).max() <= 1  # YCbCr rounds


@pytest.mark.parametrize("alpha", [0, 51, 255])
@pytest.mark.parametrize("mode", ["RGBA", "RGBa"])
def test_alpha_is_composited_on_white(mode: str, alpha: int) -> None:
    image = Image.new("RGBA", (1, 1), (*RED, alpha)).convert(mode)
    assert to_rgb(image).getpixel((0, 0)) == (255, 255 - alpha, 255 - alpha)


def test_transparent_grey_is_white() -> None:
    assert to_rgb(Image.new("LA", (1, 1), (0, 0))).getpixel((0, 0)) == WHITE
    assert to_rgb(Image.new("LA", (1, 1), (0, 255))).getpixel((0, 0)) == BLACK


def test_a_palette_entry_marked_transparent_is_white() -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([*RED, *BLACK])
    image.putpixel((1, 0), 1)
    result = to_rgb(encoded(image, transparency=0))
    assert [result.getpixel((x, 0)) for x in (0, 1)] == [WHITE, BLACK]


def test_a_grey_marked_transparent_is_white() -> None:
    image = Image.new("L", (2, 1), 0)
    image.putpixel((1, 0), 9)
    assert to_rgb(encoded(image, transparency=0)).getpixel((0, 0)) == WHITE
    assert to_rgb(encoded(image, transparency=0)).getpixel((1, 0)) == (9, 9, 9)


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    result = to_rgb(grey16([0, 255, 4000, 65535]))
    assert [result.getpixel((x, 0))[0] for x in range(4)] == [0, 0, 15, 255]


def test_16_bit_grey_of_a_file_and_of_memory_agree() -> None:
    image = grey16([0, 4000, 65535])
    assert to_rgb(encoded(image)).tobytes() == to_rgb(image).tobytes()


def test_big_endian_16_bit_grey_is_read_by_value() -> None:
    image = Image.frombytes("I;16B", (2, 1), np.array([256, 65535], dtype=">u2").tobytes())
    assert [to_rgb(image).getpixel((x, 0))[0] for x in (0, 1)] == [1, 255]


def test_32_bit_grey_follows_the_16_bit_rule_or_is_refused() -> None:
    assert to_rgb(grey16([0, 65535], np.int32)).getpixel((1, 0)) == WHITE
    for value in (-1, 65536):
        with pytest.raises(ValueError, match=r"row 3, image 0: .*from .* to .*0 to 65535"):
            to_rgb(grey16([0, value], np.int32), where="row 3, image 0")


def test_float_grey_in_the_unit_interval_is_scaled() -> None:
    result = to_rgb(grey16([0, 0.5, 1], np.float32))
    assert [result.getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf")])
def test_other_float_grey_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"float grey .*\[0, 1\]"):
        to_rgb(grey16([0.5, value], np.float32))


def test_a_mode_without_a_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'LAB', which has no rule"):
        to_rgb(Image.new("LAB", (2, 2)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_gives_the_upright_picture(orientation: int) -> None:
    upright = Image.fromarray(np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3))
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    result = to_rgb(encoded(stored, exif=exif))
    assert result.size == upright.size
    assert result.tobytes() == upright.tobytes()


def test_a_picture_is_turned_only_once() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    once = to_rgb(encoded(Image.new("RGB", (6, 4)), exif=exif))
    assert to_rgb(once).size == once.size == (4, 6)


def test_every_way_in_gives_the_same_pixels(tmp_path: pytest.TempPathFactory) -> None:
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    path = tmp_path / "picture.png"
    path.write_bytes(encoded(image))
    stored = {"bytes": path.read_bytes(), "path": None}
    sources = [
        image,
        path,
        str(path),
        path.read_bytes(),
        bytearray(path.read_bytes()),
        stored,
        {"bytes": None, "path": path},
    ]
    assert {to_rgb(source).tobytes() for source in sources} == {image.tobytes()}


def test_the_source_is_left_alone() -> None:
    image = Image.new("RGBA", (2, 2), (*RED, 0))
    result = to_rgb(image)
    result.putpixel((0, 0), BLACK)
    assert image.mode == "RGBA"
    assert image.getpixel((0, 0)) == (*RED, 0)
    plain = Image.new("RGB", (2, 2), RED)
    to_rgb(plain).putpixel((0, 0), BLACK)
    assert plain.getpixel((0, 0)) == RED


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_is_refused_and_its_single_frame_accepted(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match=rf"row 1: .*animated or multi-page {kind}.*as a video"):
        to_rgb(data, where="row 1")
    opened = Image.open(io.BytesIO(data))
    opened.seek(1)
    assert to_rgb(opened.copy()).getpixel((0, 0))[2] > 250
    assert to_rgb(encoded(frames[0], kind, save_all=True)).size == (8, 8)


def test_the_main_picture_of_an_mpo_is_taken() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    result = to_rgb(encoded(frames[0], "MPO", save_all=True, append_images=frames[1:]))
    assert result.getpixel((0, 0))[0] > 250


PNG = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)))


@pytest.mark.parametrize(
    "source",
    [PNG[: len(PNG) // 2], b"", b"plain text", PNG[:20], "no/such/file.png", {"bytes": None, "path": None}, 7, None],
    ids=["cut", "empty", "text", "header", "missing", "nothing", "number", "none"],
)
def test_what_cannot_be_read_is_an_error_that_names_the_row(source: object) -> None:
    with pytest.raises(ValueError, match=r"^row 5, image 2: "):
        to_rgb(source, where="row 5, image 2")


def test_a_text_file_named_png_is_an_error_with_its_name(tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "notes.png"
    path.write_text("not a picture")
    with pytest.raises(ValueError, match=r"notes\.png.*UnidentifiedImageError"):
        to_rgb(path)


@pytest.mark.parametrize("size", [(1, 1), (28, 28), (332, 27), (5600, 28), (28, 5600), (200, 1)])
def test_tiny_and_long_pictures_are_accepted(size: tuple[int, int]) -> None:
    assert to_rgb(Image.new("RGB", size)).size == size


@pytest.mark.parametrize("size", [(5628, 28), (300, 1), (1, 201)])
def test_extreme_aspect_ratios_are_refused_with_the_size(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=rf"{size[0]}x{size[1]}, an aspect ratio of .*{MAX_ASPECT_RATIO}"):
        to_rgb(Image.new("L", size))


def test_a_picture_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="0x4"):
        to_rgb(Image.new("RGB", (0, 4)))


def test_text_chunks_of_a_png_do_no_harm() -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "hello")
    assert to_rgb(encoded(Image.new("RGB", (2, 2), RED), pnginfo=info)).getpixel((0, 0)) == RED

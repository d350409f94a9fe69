"""The published sizes of Qwen2.5-VL as data, and how to find one by name."""

from __future__ import annotations

from rollplex.shapes import ModelShape, TextShape, VisionShape


def shape(name: str) -> ModelShape:
    """The shape of a published model, by its name with or without owner and ``-Instruct``.

    >>> shape("Qwen/Qwen2.5-VL-32B-Instruct").text.num_layers
    64
    """
    wanted = name.rpartition("/")[2].removesuffix("-Instruct").casefold()
    for known in PUBLISHED:
        if known.name.casefold() == wanted:
            return known
    raise ValueError(
        f"looking up the shape of {name!r}: known are {', '.join(known.name for known in PUBLISHED)}. "
        "For any other model of the family use ModelShape.from_config(transformers.AutoConfig.from_pretrained(...))."
    )


def _published(size: str, text: TextShape, vision_ffn: int, nominal: float) -> ModelShape:
    vision = VisionShape(
        hidden_size=1280, num_blocks=32, num_heads=16, intermediate_size=vision_ffn, out_size=text.hidden_size
    )
    source = f"config.json of Qwen/Qwen2.5-VL-{size}-Instruct; nominal count from the card of Qwen2.5-{size}"
    return ModelShape(name=f"Qwen2.5-VL-{size}", text=text, vision=vision, nominal_parameters=nominal, source=source)


def _text(d: int, layers: int, heads: int, kv_heads: int, f: int, vocabulary: int, *, tied: bool = False) -> TextShape:
    return TextShape(
        hidden_size=d, num_layers=layers, num_heads=heads, num_kv_heads=kv_heads,
        intermediate_size=f, vocabulary_size=vocabulary, tied=tied,
    )  # fmt: skip


# Their totals equal the parameter counts published with the checkpoints (tests/test_shapes.py).
PUBLISHED = (
    _published("3B", _text(2048, 36, 16, 2, 11008, 151936, tied=True), 3420, 3.09e9),
    _published("7B", _text(3584, 28, 28, 4, 18944, 152064), 3420, 7.61e9),
    _published("32B", _text(5120, 64, 40, 8, 27648, 152064), 3456, 32.5e9),
    _published("72B", _text(8192, 80, 64, 8, 29568, 152064), 3456, 72.7e9),
)
"""The published sizes of Qwen2.5-VL."""

"""The sizes of a Qwen2.5-VL that decide what it costs: parameters, operations, bytes of a token.

Counted from a config's numbers; no tensor is made. It knows nothing of devices, parallelism or time.

Operations are two for each weight and token forward, plus attention; norms, softmax and sampling are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollplex.published import PUBLISHED, shape
from rollplex.shapes import ModelShape


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Dimensions of the text layers and of the vision tower."""

    name: str
    """What it is called in tables."""
    hidden: int
    """Width of the text layers."""
    layers: int
    """Text layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key/value heads."""
    head_dim: int
    """Size of a head."""
    ffn: int
    """Width of the gated feed-forward layer."""
    vocab: int
    """Tokens."""
    tied: bool
    """Whether the output layer is the embedding."""
    vision_hidden: int
    """Width of the vision tower."""
    vision_layers: int
    """Its blocks."""
    vision_ffn: int
    """Width of its gated feed-forward layer."""
    vision_full: int
    """Blocks with full attention; the others see a window."""
    vision_window: int = 64
    """Patches in a window."""
    merge: int = 4
    """Patches that become one visual token."""
    dtype_bytes: int = 2
    """Bytes of a weight and of a cached key or value."""

    @classmethod
    def of(cls, shape: ModelShape, *, dtype_bytes: int = 2) -> Geometry:
        """The dimensions of a known shape."""
        text, vision = shape.text, shape.vision
        return cls(
            name=shape.name.rpartition("/")[2],
            hidden=text.hidden_size,
            layers=text.num_layers,
            heads=text.num_heads,
            kv_heads=text.num_kv_heads,
            head_dim=text.head_dim,
            ffn=text.intermediate_size,
            vocab=text.vocabulary_size,
            tied=text.tied,
            vision_hidden=vision.hidden_size,
            vision_layers=vision.num_blocks,
            vision_ffn=vision.intermediate_size,
            vision_full=len(vision.full_attention_blocks),
            vision_window=(vision.window_size // vision.patch_size) ** 2,
            merge=vision.merge_size**2,
            dtype_bytes=dtype_bytes,
        )

    @classmethod
    def from_folder(cls, folder: str | Path, *, dtype_bytes: int = 2) -> Geometry:
        """The dimensions in a Hugging Face folder's ``config.json``."""
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"reading a model's sizes from {folder}: {error}. Give a folder as `save_pretrained` writes it."
            ) from error
        return cls.of(ModelShape.from_config(config), dtype_bytes=dtype_bytes)

    @property
    def layer_weights(self) -> int:
        """Matrix weights of one text layer.

        >>> round(GEOMETRIES["Qwen2.5-VL-32B"].text_weights / 1e9, 2)
        32.76
        """
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        return self.hidden * (rows + self.heads * self.head_dim + 3 * self.ffn)

    @property
    def head_weights(self) -> int:
        """Weights of the output layer."""
        return self.vocab * self.hidden

    @property
    def text_weights(self) -> int:
        """Matrix weights of the language model, embedding and output layer included."""
        return self.layers * self.layer_weights + self.head_weights * (1 if self.tied else 2)

    @property
    def vision_weights(self) -> int:
        """Matrix weights of the vision tower and its merger."""
        block = self.vision_hidden * (4 * self.vision_hidden + 3 * self.vision_ffn)
        wide = self.vision_hidden * self.merge
        return self.vision_layers * block + wide * (wide + self.hidden)

    @property
    def weights(self) -> int:
        """All matrix weights."""
        return self.text_weights + self.vision_weights

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers.

        >>> GEOMETRIES["Qwen2.5-VL-32B"].kv_bytes // 1024
        256
        """
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    def can_cut(self, ways: int) -> bool:
        """Whether so many tensor-parallel ranks get as many heads each; fewer key/value heads than ranks are copied.

        >>> [ways for ways in range(1, 9) if GEOMETRIES["Qwen2.5-VL-7B"].can_cut(ways)]
        [1, 2, 4]
        """
        return self.heads % ways == 0 and (self.kv_heads % ways == 0 or ways % self.kv_heads == 0)

    def text_flops(self, tokens: float, pairs: float, predicted: float = 0.0) -> float:
        """Forward over ``tokens`` that attend to ``pairs`` (query, key) pairs in all, with ``predicted`` outputs."""
        attention = 4.0 * self.layers * self.heads * self.head_dim * pairs
        return 2.0 * self.layers * self.layer_weights * tokens + attention + 2.0 * self.head_weights * predicted

    def vision_flops(self, visual_tokens: float, patches_together: float = 1024.0) -> float:
        """Forward of the vision tower; full-attention blocks see ``patches_together`` patches at once."""
        patches = visual_tokens * self.merge
        block = 2.0 * self.vision_hidden * (4 * self.vision_hidden + 3 * self.vision_ffn)
        seen = self.vision_full * patches_together + (self.vision_layers - self.vision_full) * self.vision_window
        wide = self.vision_hidden * self.merge
        merger = 2.0 * wide * (wide + self.hidden)
        return patches * (self.vision_layers * block + 4.0 * self.vision_hidden * seen) + visual_tokens * merger

    def activation_bytes(self) -> float:
        """Bytes of saved activations of one token in one text layer, no recomputation, sequence parallel.

        Per token: inputs of the four matrix products, of both norms and of the gate, in the training type.
        """
        wide = self.heads * self.head_dim
        kv = 2 * self.kv_heads * self.head_dim
        return self.dtype_bytes * (4.0 * self.hidden + 2.0 * wide + kv + 3.0 * self.ffn)

    def __repr__(self) -> str:
        return f"Geometry({self.name}, {self.weights / 1e9:.2f} B weights)"


GEOMETRIES: dict[str, Geometry] = {known.name: Geometry.of(known) for known in PUBLISHED}
"""Published sizes of the family by name."""


def geometry(model: str | Geometry | Path) -> Geometry:
    """A published size by name, with or without owner and ``-Instruct``, or one read from a folder with a ``config.json``.

    >>> geometry("Qwen/Qwen2.5-VL-7B-Instruct").kv_bytes
    57344
    """
    if isinstance(model, Geometry):
        return model
    if (Path(str(model)) / "config.json").is_file():
        return Geometry.from_folder(str(model))
    try:
        return Geometry.of(shape(str(model)))
    except ValueError:
        raise ValueError(
            f"looking for the sizes of {str(model)!r}: it is no published model, which are {', '.join(GEOMETRIES)}, and no "
            "folder with a config.json. Give one of these, or a Geometry, as policy.geometry is."
        ) from None

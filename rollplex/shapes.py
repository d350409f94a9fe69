"""Every parameter of a Qwen2.5-VL model by name, shape and role, from its config alone: no weight is allocated.

It knows what follows from a config: counts, bytes, floating-point operations. It does not know how an engine lays a
parameter out (`rollplex.sharing`) or how long an object lives (`rollplex.memory`).

Letters: d text width, f text feed-forward, V vocabulary, e vision width, g vision feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Part = Literal["language", "vision"]
"""The text model with its embeddings, or the vision tower with its merger."""

Kind = Literal["matrix", "bias", "norm", "embedding", "convolution"]
"""What a parameter is to the arithmetic: only a matrix is the operand of a matrix product."""

Role = Literal[
    "query", "key", "value", "query_key_value", "attention_out", "gate", "up", "down",
    "embedding", "head", "norm", "patches", "merger",
]  # fmt: skip
"""What a parameter does in the model; weight and bias of one projection have one role."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of the transformers module."""

    name: str
    """As in ``named_parameters()``."""
    shape: tuple[int, ...]
    """As transformers stores it: ``[out, in]`` for a matrix."""
    kind: Kind
    """Matrix, bias, norm, embedding or convolution."""
    role: Role
    """What it does."""
    part: Part
    """Which half of the model it belongs to."""
    layer: int | None = None
    """Index of its text layer or vision block; None outside of them."""

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class TextShape:
    """Sizes of the text model."""

    hidden_size: int
    """d."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads."""
    intermediate_size: int
    """f."""
    vocabulary_size: int
    """V."""
    tied: bool
    """Whether the output head is the embedding."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of all keys (or all values) of one token in one layer."""
        return self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of keys and values that one token leaves behind, over all layers."""
        return 2 * self.kv_size * self.num_layers * element_bytes

    def flops_per_token(self, context: int = 0, *, head: bool = True) -> int:
        """Operations of one forward pass for one token that attends to ``context`` others; two for each product.

        >>> from rollplex.published import shape
        >>> round(shape("Qwen2.5-VL-32B").text.flops_per_token() / 1e9)
        64
        """
        d, f = self.hidden_size, self.intermediate_size
        layer = 2 * (2 * d * d + 2 * d * self.kv_size + 3 * d * f) + 4 * d * context
        return layer * self.num_layers + (2 * d * self.vocabulary_size if head else 0)


@dataclass(frozen=True, kw_only=True)
class VisionShape:
    """Sizes of the vision tower."""

    hidden_size: int
    """e."""
    num_blocks: int
    """Blocks."""
    num_heads: int
    """Attention heads."""
    intermediate_size: int
    """g."""
    out_size: int
    """Width of a visual token: the text model's d."""
    full_attention_blocks: tuple[int, ...] = (7, 15, 23, 31)
    """Blocks that attend over a whole frame."""
    channels: int = 3
    """Colours."""
    patch_size: int = 14
    """Pixels along a patch's side."""
    temporal_patch_size: int = 2
    """Frames of one patch."""
    merge_size: int = 2
    """Patches along the side of a visual token."""
    window_size: int = 112
    """Pixels along the side of an attention window."""

    def flops_per_token(self, frame_patches: int = 0) -> int:
        """Operations for one visual token (the patches that it merges), in frames of ``frame_patches`` patches.

        Windowed blocks attend within their window; without ``frame_patches``, every block is taken to do so.

        >>> from rollplex.published import shape
        >>> round(shape("Qwen2.5-VL-32B").vision.flops_per_token() / 1e9, 1)
        5.2
        """
        e, g, merged = self.hidden_size, self.intermediate_size, self.merge_size**2
        window = (self.window_size // self.patch_size) ** 2
        full = len(self.full_attention_blocks)
        seen = (self.num_blocks - full) * window + full * (frame_patches or window)
        patch = 2 * self.channels * self.temporal_patch_size * self.patch_size**2 * e
        block = 2 * (4 * e * e + 3 * e * g)
        wide = merged * e
        merger = 2 * (wide * wide + wide * self.out_size)
        return merged * (patch + block * self.num_blocks + 4 * e * seen) + merger


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a whole model, and every parameter that follows from them.

    >>> from rollplex.published import shape
    >>> model = shape("Qwen2.5-VL-7B")
    >>> f"{model.num_parameters():,}"
    '8,292,166,656'
    """

    name: str
    """What a person calls it."""
    text: TextShape
    """The text model."""
    vision: VisionShape
    """The vision tower."""
    nominal_parameters: float | None = None
    """Parameters of the text model as its model card rounds them; papers' tables count with this figure."""
    source: str = ""
    """Where the sizes are from."""

    @classmethod
    def from_config(cls, config: PreTrainedConfig, name: str = "") -> ModelShape:
        """Read the sizes from a transformers config of the family."""
        from transformers import Qwen2_5_VLConfig

        if not isinstance(config, Qwen2_5_VLConfig):
            raise ValueError(
                f"reading shapes from a {type(config).__name__}: only Qwen2_5_VLConfig is known here. "
                "Another family needs its parameters described beside those in rollplex/shapes.py."
            )
        text: Any = config.text_config
        vision: Any = config.vision_config
        return cls(
            name=name or config.name_or_path or config.model_type,
            source="a transformers config",
            text=TextShape(
                hidden_size=text.hidden_size,
                num_layers=text.num_hidden_layers,
                num_heads=text.num_attention_heads,
                num_kv_heads=text.num_key_value_heads,
                intermediate_size=text.intermediate_size,
                vocabulary_size=text.vocab_size,
                tied=config.tie_word_embeddings,
            ),
            vision=VisionShape(
                hidden_size=vision.hidden_size,
                num_blocks=vision.depth,
                num_heads=vision.num_heads,
                intermediate_size=vision.intermediate_size,
                out_size=vision.out_hidden_size,
                full_attention_blocks=tuple(vision.fullatt_block_indexes),
                channels=vision.in_channels,
                patch_size=vision.patch_size,
                temporal_patch_size=vision.temporal_patch_size,
                merge_size=vision.spatial_merge_size,
                window_size=vision.window_size,
            ),
        )

    def parameters(self, *parts: Part) -> tuple[Parameter, ...]:
        """Every distinct parameter, in the order of ``named_parameters()``; ``parts`` selects."""
        both = (*_vision_parameters(self.vision), *_text_parameters(self.text))
        return tuple(p for p in both if not parts or p.part in parts)

    def num_parameters(self, *parts: Part) -> int:
        """How many numbers they hold."""
        return sum(p.num_elements for p in self.parameters(*parts))


def _vision_parameters(v: VisionShape) -> Iterator[Parameter]:
    def of(name: str, shape: tuple[int, ...], kind: Kind, role: Role, layer: int | None = None) -> Parameter:
        return Parameter(name=f"model.visual.{name}", shape=shape, kind=kind, role=role, part="vision", layer=layer)

    def linear(name: str, out: int, width: int, role: Role, layer: int | None = None) -> Iterator[Parameter]:
        yield of(f"{name}.weight", (out, width), "matrix", role, layer)
        yield of(f"{name}.bias", (out,), "bias", role, layer)

    e, g, wide = v.hidden_size, v.intermediate_size, v.hidden_size * v.merge_size**2
    patch = (e, v.channels, v.temporal_patch_size, v.patch_size, v.patch_size)
    yield of("patch_embed.proj.weight", patch, "convolution", "patches")
    for i in range(v.num_blocks):
        block = f"blocks.{i}"
        yield of(f"{block}.norm1.weight", (e,), "norm", "norm", i)
        yield of(f"{block}.norm2.weight", (e,), "norm", "norm", i)
        yield from linear(f"{block}.attn.qkv", 3 * e, e, "query_key_value", i)
        yield from linear(f"{block}.attn.proj", e, e, "attention_out", i)
        yield from linear(f"{block}.mlp.gate_proj", g, e, "gate", i)
        yield from linear(f"{block}.mlp.up_proj", g, e, "up", i)
        yield from linear(f"{block}.mlp.down_proj", e, g, "down", i)
    yield of("merger.ln_q.weight", (e,), "norm", "norm")
    yield from linear("merger.mlp.0", wide, wide, "merger")
    yield from linear("merger.mlp.2", v.out_size, wide, "merger")


def _text_parameters(t: TextShape) -> Iterator[Parameter]:
    def of(name: str, shape: tuple[int, ...], kind: Kind, role: Role, layer: int | None = None) -> Parameter:
        return Parameter(name=name, shape=shape, kind=kind, role=role, part="language", layer=layer)

    d, f, inner = t.hidden_size, t.intermediate_size, t.num_heads * t.head_dim
    yield of("model.language_model.embed_tokens.weight", (t.vocabulary_size, d), "embedding", "embedding")
    projections: tuple[tuple[str, int, Role], ...] = (
        ("q_proj", inner, "query"), ("k_proj", t.kv_size, "key"), ("v_proj", t.kv_size, "value"),
    )  # fmt: skip
    for i in range(t.num_layers):
        layer = f"model.language_model.layers.{i}"
        for name, out, role in projections:
            yield of(f"{layer}.self_attn.{name}.weight", (out, d), "matrix", role, i)
            yield of(f"{layer}.self_attn.{name}.bias", (out,), "bias", role, i)
        yield of(f"{layer}.self_attn.o_proj.weight", (d, inner), "matrix", "attention_out", i)
        yield of(f"{layer}.mlp.gate_proj.weight", (f, d), "matrix", "gate", i)
        yield of(f"{layer}.mlp.up_proj.weight", (f, d), "matrix", "up", i)
        yield of(f"{layer}.mlp.down_proj.weight", (d, f), "matrix", "down", i)
        yield of(f"{layer}.input_layernorm.weight", (d,), "norm", "norm", i)
        yield of(f"{layer}.post_attention_layernorm.weight", (d,), "norm", "norm", i)
    yield of("model.language_model.norm.weight", (d,), "norm", "norm")
    if not t.tied:
        yield of("lm_head.weight", (t.vocabulary_size, d), "matrix", "head")

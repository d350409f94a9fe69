"""How known trainers and engines lay out a Qwen2.5-VL: one rule for each role of a parameter.

Each descriptor says which tensors a rank has. The verdict on sharing is nowhere in here: `rollplex.sharing.classify`
takes the layouts of two ranks and compares bytes. Tensors are named by the checkpoint's paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, Literal, Protocol

from rollplex.shapes import ModelShape, Parameter, Part, Role
from rollplex.sharing.layout import Layout, Piece

PAGE_BYTES = 2 * 2**20
"""Page of a CUDA device's mappings, below which parts of a tensor cannot be placed one by one."""

FUSED: Mapping[Role, tuple[Role, ...]] = {"query": ("query", "key", "value"), "gate": ("gate", "up")}
"""First role of a fused projection -> all of them, in order."""


class Descriptor(Protocol):
    """Something that says which tensors an engine has on a rank."""

    def layouts(self, model: ModelShape, tp: int, rank: int, *parts: Part) -> tuple[Layout, ...]:
        """The tensors of one rank of ``tp``; ``parts`` selects."""
        ...


@dataclass(frozen=True, kw_only=True)
class TorchTrainer:
    """A torch-native trainer: the checkpoint's own tensors, each sharded along one dimension as a DTensor is.

    A key or value head is replicated where ranks outnumber heads. The vision tower is replicated.
    """

    vocabulary_multiple: int = 64
    """Vocabulary rows are padded to a multiple of this: the engine's, so that shards nest."""

    def layouts(self, model: ModelShape, tp: int, rank: int, *parts: Part) -> tuple[Layout, ...]:
        """The tensors of one rank of ``tp``.

        >>> from rollplex.published import shape
        >>> layout = TorchTrainer().layouts(shape("Qwen2.5-VL-3B"), 2, 0, "language")[1]
        >>> layout.tensor, layout.rows
        ('model.language_model.layers.0.self_attn.q_proj.weight', 1024)
        """
        _check_heads(model, tp)
        rules = _Rules(model, tp, self.vocabulary_multiple, min_block_bytes=PAGE_BYTES)
        return tuple(rules.layout(p.name, [p]).on(rank) for p in model.parameters(*parts))


@dataclass(frozen=True, kw_only=True)
class MegatronTrainer:
    """A Megatron-style trainer: queries, keys and values interleaved by head group, gate and up merged.

    The interleaved rows are divided evenly, also where ranks outnumber head groups. The merged gate and up may be two
    operands. The vision tower is replicated, and as in the checkpoint.
    """

    vocabulary_multiple: int = 64
    """Vocabulary rows are padded to a multiple of this. Megatron's own default is 128 times its TP degree, which makes
    152,064 rows 152,576 at TP 8 and moves every boundary: then an engine that pads to 64 cannot share the embedding."""
    min_block_bytes: int = PAGE_BYTES
    """Least bytes of a block of gate or up that can be an operand by itself. Blocks of one region can be of any size."""

    def layouts(self, model: ModelShape, tp: int, rank: int, *parts: Part) -> tuple[Layout, ...]:
        """The tensors of one rank of ``tp``.

        >>> from rollplex.published import shape
        >>> layout = MegatronTrainer().layouts(shape("Qwen2.5-VL-32B"), 8, 3, "language")[1]
        >>> [(block.name.split(".")[-2], block.row, block.rows) for block in layout.blocks]
        [('q_proj', 1920, 640), ('k_proj', 384, 128), ('v_proj', 384, 128)]
        """
        _check_heads(model, tp)
        rules = _Rules(model, tp, self.vocabulary_multiple, min_block_bytes=self.min_block_bytes)
        layouts = []
        for group in _packed(model.parameters(*parts), "language"):
            layout = rules.layout(_name(group, {"query": "linear_qkv", "gate": "linear_fc1"}), group).on(rank)
            if group[0].role == "query":
                layout = replace(layout, packing="interleaved", groups=model.text.num_kv_heads)
            layouts.append(layout)
        return tuple(layouts)


@dataclass(frozen=True, kw_only=True)
class VLLM:
    """vLLM's fused tensors: queries, keys and values one after the other, gate before up, vocabulary padded.

    A key or value head is replicated where ranks outnumber heads. Each tensor must be one dense run or its transpose.
    """

    vision: Literal["replicated", "sharded"] = "replicated"
    """``replicated`` is ``mm_encoder_tp_mode="data"``; ``sharded`` divides tower and merger as the text layers."""
    vocabulary_multiple: int = 64
    """Vocabulary rows are padded to a multiple of this."""

    def layouts(self, model: ModelShape, tp: int, rank: int, *parts: Part) -> tuple[Layout, ...]:
        """The tensors of one rank of ``tp``.

        >>> from rollplex.published import shape
        >>> layout = VLLM().layouts(shape("Qwen2.5-VL-32B"), 4, 0, "language")[1]
        >>> layout.tensor, [block.rows for block in layout.blocks]
        ('model.language_model.layers.0.self_attn.qkv_proj.weight', [1280, 256, 256])
        """
        _check_heads(model, tp)
        rules = _Rules(model, tp, self.vocabulary_multiple, vision_sharded=self.vision == "sharded")
        names: dict[Role, str] = {"query": "qkv_proj", "gate": "gate_up_proj"}
        groups = _packed(model.parameters(*parts), "language", "vision")
        return tuple(rules.layout(_name(group, names), group).on(rank) for group in groups)


@dataclass(frozen=True)
class _Rules:
    """Which axis a role is divided along; the same in every engine that has tensor parallelism."""

    model: ModelShape
    tp: int
    vocabulary_multiple: int
    vision_sharded: bool = False
    min_block_bytes: int | None = None

    def layout(self, tensor: str, group: Sequence[Parameter]) -> Layout:
        """The layout of rank 0."""
        first = group[0]
        sharding = self._sharding(first)
        return Layout(
            tensor=tensor,
            pieces=tuple(piece for parameter in group for piece in self._pieces(parameter, sharding)),
            transposable=first.kind == "matrix",
            min_block_bytes=self.min_block_bytes,
            tp=self.tp,
            **sharding,
        )

    def _sharding(self, p: Parameter) -> dict[str, Any]:
        if p.part == "vision" and not self.vision_sharded:
            return {}
        match p.role:
            case "query" | "key" | "value" | "query_key_value" | "gate" | "up":
                return {"axis": "rows"}
            case "attention_out" | "down" if p.kind == "matrix":
                return {"axis": "columns"}
            case "merger" if ".mlp.0." in p.name:
                return {"axis": "rows"}
            case "merger" if p.kind == "matrix":
                return {"axis": "columns"}
            case "embedding" | "head":
                return {"axis": "rows", "padded_to": lcm(self.vocabulary_multiple, self.tp)}
            case _:
                return {}  # norms, the biases of sums over ranks, what stands outside of the blocks

    def _pieces(self, p: Parameter, sharding: Mapping[str, Any]) -> list[Piece]:
        rows, columns = p.shape[0], p.num_elements // p.shape[0]
        by_head = p.role in ("query", "key", "value", "query_key_value", "attention_out")
        unit = self._head_dim(p.part) if sharding and by_head else 1
        if not sharding or p.role != "query_key_value":
            return [Piece(name=p.name, rows=rows, columns=columns, unit=unit)]
        third = rows // 3
        return [Piece(name=p.name, rows=third, columns=columns, unit=unit, first_row=i * third) for i in range(3)]

    def _head_dim(self, part: Part) -> int:
        vision = self.model.vision
        return self.model.text.head_dim if part == "language" else vision.hidden_size // vision.num_heads


def _packed(parameters: Sequence[Parameter], *parts: Part) -> list[list[Parameter]]:
    """Parameters in groups of one tensor, those of fused projections of ``parts`` together."""
    head_of = {role: head for head, roles in FUSED.items() for role in roles}
    groups: dict[tuple[object, ...], list[Parameter]] = {}
    for p in parameters:
        head = head_of.get(p.role) if p.part in parts else None
        key = (p.part, p.layer, p.kind, head) if head else (p.name,)
        groups.setdefault(key, []).append(p)
    return list(groups.values())


def _name(group: Sequence[Parameter], names: Mapping[Role, str]) -> str:
    """A fused tensor's name in place of its first part's module; the checkpoint's name for a tensor of one part."""
    path = group[0].name.split(".")
    if len(group) > 1:
        path[-2] = names[group[0].role]
    return ".".join(path)


def _check_heads(model: ModelShape, tp: int) -> None:
    heads = model.text.num_heads
    if tp < 1 or heads % tp:
        fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(
            f"laying out {model.name} over TP {tp}: its {heads} query heads do not divide by {tp}. "
            f"Choose one of TP {fits}."
        )

"""What a step's objects weigh on one device, from shapes alone: all at once, and under phase-aware residency.

Every row carries its derivation. The defaults are the paper's assumptions, some of which others avoid; each can be
switched. Whatever is published for the defaults stands beside the row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from rollplex.published import shape
from rollplex.shapes import ModelShape
from rollplex.sharing.descriptors import MegatronTrainer
from rollplex.sharing.plan import rank_map, sharing_plan

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go
    from transformers import PreTrainedConfig

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a footprint depends on besides shapes; the defaults are the paper's."""

    train_dp: int = 4
    """Data-parallel replicas of the trainer: 32 devices at TP 8."""
    prompts: int = 32
    """Prompts of a step, over all replicas."""
    group: int = 8
    """Responses for each."""
    prompt_tokens: int = 8192
    """Longest prompt."""
    microbatch_tokens: int = 16384
    """Tokens that go through the trainer at once: two prompts."""
    device_gib: float = 80.0
    """Memory of a device."""
    rollout_utilization: float = 0.6
    """Share of the device that the rollout engine takes for weights, buffers and, with what is left, KV cache."""
    runtime_gib: float = 4.0
    """Of that, buffers of the runtime: graphs, workspaces, communicators. The paper says 2 to 4."""
    optimizer_chunks: int = 16
    """Chunks of the streamed update, three of which are in flight."""
    exact: bool = False
    """Count the text model's parameters one by one, not by the rounded figure of the model card."""
    sharded_optimizer: bool = False
    """Divide master weights and moments over the data-parallel replicas."""
    recompute: bool = False
    """Keep each layer's input and recompute the layer in the backward pass."""
    deduplicated: bool = False
    """Keep one boundary a prompt, not one a response."""
    reference_boundary: bool = False
    """Count the reference's boundary too; the paper's table has no row for it."""


PAPER = Assumptions()
"""As in the paper's table for Qwen2.5-VL-32B at TP 8 over 4."""

PUBLISHED_GIB: dict[str, float | None] = {
    "weights": 7.6, "gradients": 15.1, "master weights": 15.1, "Adam moments": 30.3, "activations": 28.3,
    "boundary KV": 16.0, "reference weights": 7.6, "rollout weights": 15.1, "rollout KV": 29.0, "runtime buffers": None,
}  # fmt: skip
"""The paper's Table 1; runtime buffers are given as 2 to 4."""

PUBLISHED_TOTAL_GIB = 165.0
"""The paper's rounded total."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One object on one device."""

    role: str
    """Training actor, reference or rollout."""
    item: str
    """The object."""
    gib: float
    """Its size."""
    paper_gib: float | None
    """The published size, where there is one for these assumptions."""
    derivation: str
    """How the size comes about."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """All objects of a step on one device."""

    model: ModelShape
    """Whose."""
    train_tp: int
    """Training ranks that divide the model."""
    rollout_tp: int
    """Rollout ranks that divide it."""
    assumptions: Assumptions
    """What else it depends on."""
    rows: tuple[Row, ...]
    """Naive overlap: everything resident at once."""
    layer_activations_gib: float
    """Activations of one layer and one microbatch."""
    checkpoints_gib: float
    """Inputs of all layers for one microbatch."""

    @cached_property
    def buffer_gib(self) -> float:
        """The engine's own copy of what weight sharing with a Megatron-style trainer cannot share."""
        plan = sharing_plan(self.model, train_tp=self.train_tp, rollout_tp=self.rollout_tp, trainer=MegatronTrainer())
        return plan.buffer_bytes_per_device / GIB

    @property
    def total_gib(self) -> float:
        """Everything resident at once."""
        return sum(row.gib for row in self.rows)

    @property
    def paper_total_gib(self) -> float | None:
        """The published total, where there is one for these assumptions."""
        return PUBLISHED_TOTAL_GIB if self.rows[0].paper_gib is not None else None

    def gib(self, item: str) -> float:
        """Size of an item, 0 if these assumptions have none."""
        return sum(row.gib for row in self.rows if row.item == item)

    def frame(self) -> pandas.DataFrame:
        """The rows as a table, indexed by role and item."""
        import pandas

        rows = [
            {"role": r.role, "item": r.item, "GiB": r.gib, "paper": r.paper_gib, "how": r.derivation} for r in self.rows
        ]
        return pandas.DataFrame(rows).set_index(["role", "item"])

    def figure(self) -> go.Figure:
        """All at once beside the peaks of managed stages; see `rollplex.memory.managed`."""
        from rollplex.views.footprint import footprint

        return footprint(self)

    def _repr_html_(self) -> str:
        return self.frame().to_html(float_format="{:.1f}".format, na_rep="")

    def __repr__(self) -> str:
        return (
            f"Footprint({self.model.name}, training TP {self.train_tp} over rollout TP {self.rollout_tp}: "
            f"{self.total_gib:.1f} GiB at once)"
        )


def footprint(
    config: ModelShape | PreTrainedConfig | str,
    *,
    train_tp: int = 8,
    rollout_tp: int = 4,
    assumptions: Assumptions = PAPER,
) -> Footprint:
    """The static table of a model: a name, a transformers config, or a shape.

    >>> table = footprint("Qwen2.5-VL-32B")
    >>> table
    Footprint(Qwen2.5-VL-32B, training TP 8 over rollout TP 4: 167.9 GiB at once)
    >>> round(table.frame()["GiB"].sum())
    168
    """
    model = shape(config) if isinstance(config, str) else config
    model = model if isinstance(model, ModelShape) else ModelShape.from_config(model)
    rank_map(train_tp, rollout_tp)  # refuses ratios that no plan of sharing covers
    published = model.name == "Qwen2.5-VL-32B" and (train_tp, rollout_tp) == (8, 4) and assumptions == PAPER
    rows = _rows(model, train_tp, rollout_tp, assumptions)
    layer, inputs = _activation_bytes(model, train_tp)
    return Footprint(
        model=model,
        train_tp=train_tp,
        rollout_tp=rollout_tp,
        assumptions=assumptions,
        rows=rows if published else tuple(replace(row, paper_gib=None) for row in rows),
        layer_activations_gib=layer * assumptions.microbatch_tokens / GIB,
        checkpoints_gib=inputs * model.text.num_layers * assumptions.microbatch_tokens / GIB,
    )


def _activation_bytes(model: ModelShape, tp: int) -> tuple[int, int]:
    """Bytes that one token saves in one layer, all of it or the layer's input alone, in BF16.

    With sequence parallelism all of it divides by TP; flash attention saves no scores. Width d is saved six times
    (two norms' inputs and outputs, queries, attended values), keys and values once, width f three times (gate, up,
    and their product).
    """
    t = model.text
    return 2 * (6 * t.hidden_size + 2 * t.kv_size + 3 * t.intermediate_size) // tp, 2 * t.hidden_size // tp


def _rows(model: ModelShape, tp: int, rollout_tp: int, a: Assumptions) -> tuple[Row, ...]:
    num = model.nominal_parameters if model.nominal_parameters and not a.exact else model.num_parameters("language")
    size = f"{num / 1e9:.5g}e9 parameters"
    dp = a.train_dp if a.sharded_optimizer else 1
    over = f" / TP {tp}" + (f" / DP {dp}" if dp > 1 else "")

    def row(role: str, item: str, num_bytes: float, derivation: str) -> Row:
        return Row(role=role, item=item, gib=num_bytes / GIB, paper_gib=PUBLISHED_GIB[item], derivation=derivation)

    weights, shard = num * 2 / tp, num * 2 / rollout_tp
    rows = [
        row("training actor", "weights", weights, f"{size} x 2 B / TP {tp}"),
        row("training actor", "gradients", num * 4 / tp, f"{size} x 4 B / TP {tp}"),
        row("training actor", "master weights", num * 4 / tp / dp, f"{size} x 4 B{over}"),
        row("training actor", "Adam moments", num * 8 / tp / dp, f"{size} x 8 B{over}"),
        _activations(model, tp, a),
        *_boundaries(model, tp, a),
        row("reference", "reference weights", weights, f"{size} x 2 B / TP {tp}"),
        row("rollout", "rollout weights", shard, f"{size} x 2 B / TP {rollout_tp}"),
        _rollout_kv(model, rollout_tp, shard, a),
        row("rollout", "runtime buffers", a.runtime_gib * GIB, "assumed; the paper says 2 to 4 GiB"),
    ]
    return tuple(rows)


def _activations(model: ModelShape, tp: int, a: Assumptions) -> Row:
    layer, inputs = _activation_bytes(model, tp)
    layers, tokens = model.text.num_layers, a.microbatch_tokens
    if a.recompute:
        num_bytes = (inputs * layers + layer) * tokens
        why = f"({inputs:,} B/token x {layers} layers + {layer:,} B/token of one layer) x {tokens:,} tokens"
    else:
        num_bytes = layer * layers * tokens
        why = f"{layer:,} B/token/layer x {layers} layers x {tokens:,} tokens; 2 B x (6 d + 2 kv + 3 f) / TP {tp}"
    return Row(
        role="training actor", item="activations", gib=num_bytes / GIB,
        paper_gib=PUBLISHED_GIB["activations"], derivation=why,
    )  # fmt: skip


def _boundaries(model: ModelShape, tp: int, a: Assumptions) -> list[Row]:
    per_token = _kv_bytes_per_token(model, tp)
    prompts, copies = a.prompts / a.train_dp, 1 if a.deduplicated else a.group
    gib = per_token * prompts * copies * a.prompt_tokens / GIB
    why = f"{per_token / 1024:g} KiB/token x {prompts:g} prompts x {copies} x {a.prompt_tokens:,} tokens"
    published = PUBLISHED_GIB["boundary KV"]
    rows = [Row(role="training actor", item="boundary KV", gib=gib, paper_gib=published, derivation=why)]
    if a.reference_boundary:
        rows.append(Row(role="reference", item="reference boundary KV", gib=gib, paper_gib=None, derivation=why))
    return rows


def _kv_bytes_per_token(model: ModelShape, tp: int) -> float:
    """Of one rank; heads divide over ranks until there is one each."""
    t = model.text
    return t.kv_bytes_per_token() * max(t.num_kv_heads // tp, 1) / t.num_kv_heads


def _rollout_kv(model: ModelShape, rollout_tp: int, shard_bytes: float, a: Assumptions) -> Row:
    taken = a.rollout_utilization * a.device_gib
    gib = taken - shard_bytes / GIB - a.runtime_gib
    per_token = _kv_bytes_per_token(model, rollout_tp)
    if gib <= 0:
        raise ValueError(
            f"planning the footprint of {model.name}: its rollout weights at TP {rollout_tp} and the runtime's buffers "
            f"take {taken - gib:.1f} GiB of the engine's {taken:.1f} and leave no KV cache. Raise the rollout TP, "
            "rollout_utilization or device_gib."
        )
    why = (
        f"{a.rollout_utilization:g} x {a.device_gib:g} GiB - weights - buffers: "
        f"{gib * GIB / per_token:,.0f} tokens of {per_token / 1024:g} KiB"
    )
    return Row(role="rollout", item="rollout KV", gib=gib, paper_gib=PUBLISHED_GIB["rollout KV"], derivation=why)

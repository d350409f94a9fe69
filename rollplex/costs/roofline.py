"""Costs from sizes: operations over reachable FLOP/s, bytes over reachable bandwidth, plus overheads that are not on the roofline.

Every efficiency is a stated assumption with a default; published systems reach other values, and measured traces should
replace them where there are any (`rollplex.costs.measured`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy

from rollplex.costs.collectives import all_gather_s, all_reduce_s, broadcast_s
from rollplex.costs.costs import Order, Piece
from rollplex.costs.decoding import Speed, decode_pieces
from rollplex.costs.geometry import Geometry
from rollplex.hardware import Cluster, Link


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How far from its peaks a device runs, and what is not on the roofline at all."""

    prefix: float = 0.35
    """Share of peak FLOP/s in prompt forwards."""
    train: float = 0.35
    """Share of peak FLOP/s in suffixes and backward passes."""
    memory: float = 0.7
    """Share of peak memory bandwidth in decoding."""
    link: float = 0.7
    """Share of a link's bandwidth."""
    token_s: float = 2e-3
    """Fixed time of one decode iteration: launches, scheduling."""
    sequence_s: float = 1e-5
    """Time of one decode iteration for each sequence in it: sampling, bookkeeping."""
    input_s_per_visual_token: float = 0.0
    """Host work (video decoding, resizing, copying) for each visual token, for each model that reads the prompt."""
    prompt_s: float = 0.0
    """Fixed time of each prompt in a prefix: launches at microbatch 1, saved tensors offloaded."""
    vision_replicated: bool = True
    """Whether every rank of a tensor-parallel group runs the whole vision tower."""
    prompt_kv_per_group: bool = False
    """Whether decoding reads a group's prompt KV once instead of once for each of its responses."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How models are cut, and what the residency policy costs in time."""

    train_tp: int = 8
    """Tensor-parallel degree of actor and reference."""
    rollout_tp: int = 4
    """Tensor-parallel degree of an engine replica."""
    recompute: bool = True
    """Whether backward passes run the forward again."""
    host_state: bool = True
    """Whether FP32 master and moments live in host memory and are streamed through the device."""
    shard_optimizer: bool = False
    """Whether master and moments are sharded over data-parallel ranks."""
    delta: float = 1.0
    """Share of the weights that a transfer between pools sends (sparse deltas send few, with their indices)."""
    sites: int = 0
    """Sites that the rollout pool is spread over, each behind ``between_sites``; 0: same site, ordinary links."""
    between_sites: Link | None = None
    """The link to those sites."""
    accepted: float = 1.0
    """Tokens accepted for each decode iteration: above 1 with speculative drafts."""

    @property
    def unit(self) -> int:
        """Devices that a pool has a multiple of."""
        return max(self.train_tp, self.rollout_tp)


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Costs of a model on a cluster.

    >>> from rollplex.costs.geometry import geometry
    >>> from rollplex.costs.workload import Workload
    >>> from rollplex.hardware import cluster
    >>> costs = Roofline(geometry=geometry("Qwen2.5-VL-32B"), cluster=cluster("H800", num_nodes=4))
    >>> order = Order(field="policy_prefix", draw=Workload().draw(), devices=32)
    >>> len(costs.pieces(order))  # 32 prompts over 4 data-parallel ranks
    8
    """

    geometry: Geometry
    """The model's sizes."""
    cluster: Cluster
    """The devices."""
    placement: Placement = field(default_factory=Placement)
    """Tensor-parallel degrees and residency."""
    efficiency: Efficiency = field(default_factory=Efficiency)
    """How far from the peaks."""
    pools: dict[str, Cluster] = field(default_factory=dict)
    """Pools of another kind of device than ``cluster``'s, by name."""

    def pieces(self, order: Order) -> list[Piece]:
        """The work of one phase."""
        match order.field:
            case "rollout":
                return self._decode(order)
            case "rewards":
                return [Piece(f"group {i}", 1e-3, "host", (i,), i) for i in range(order.draw.num_prompts)]
            case "policy_prefix" | "reference_prefix":
                return self._prefix(order)
            case "suffix":
                return self._suffix(order)
            case "update":
                return self._update(order)
            case "published":
                return [Piece("weights", self.publish_s(order.devices), "copy", busy=1.0)]
            case other:
                raise ValueError(f"costing a phase that writes {other!r}: a Roofline knows the phases of a step only")

    def _where(self, order: Order) -> Cluster:
        return self.pools.get(order.pool, self.cluster)

    def _ranks(self, order: Order) -> int:
        return _ranks(order.devices, self.placement.train_tp, "training", order.pool)

    def _decode(self, order: Order) -> list[Piece]:
        where, tp = self._where(order), self.placement.rollout_tp
        g, e = self.geometry, self.efficiency
        replicas = _ranks(order.devices, tp, "rollout", order.pool)
        moved = (g.text_weights - (0 if g.tied else g.head_weights)) * g.dtype_bytes / tp
        rate = where.device.flops * e.prefix
        speed = Speed(
            fixed_s=moved / (where.device.memory_bytes_per_s * e.memory)
            + e.token_s
            + 2 * g.layers * all_reduce_s(0.0, tp, where),
            # Whichever is longer, arithmetic or the bytes of activations on the links, is small beside reading weights
            # until a batch is large; it is charged in full, which is slightly pessimistic.
            row_s=e.sequence_s
            + 2 * (g.layers * g.layer_weights + g.head_weights) / (tp * rate)
            + 2 * g.layers * (all_reduce_s(2 * g.hidden, tp, where, e.link) - all_reduce_s(0.0, tp, where)),
            context_s=g.kv_bytes * max(1 / tp, 1 / g.kv_heads) / (where.device.memory_bytes_per_s * e.memory),
            kv_bytes=g.kv_bytes * max(1 / tp, 1 / g.kv_heads),
            per_group=e.prompt_kv_per_group,
            accepted=self.placement.accepted,
        )
        if order.handoff:
            # Training ranks of one engine replica gather the head shards that they hold, group by group of ranks.
            times = max(self.placement.train_tp // tp, 1)
            shard = g.kv_bytes * max(1 / tp, 1 / g.kv_heads)
            prefill = numpy.array([all_gather_s(p * shard, times, where, e.link) for p in order.draw.prompts])
        else:
            prefill = numpy.array([self._forward_s(p, v, tp, where) for p, v in _prompts(order)])
        return decode_pieces(order.draw, prefill, replicas, speed)

    def _prefix(self, order: Order) -> list[Piece]:
        where, ranks = self._where(order), self._ranks(order)
        costs = [
            self._forward_s(p, v, self.placement.train_tp, where) + self.efficiency.prompt_s for p, v in _prompts(order)
        ]
        return [Piece(f"prompts {i}", s) for i, s in enumerate(_rounds(costs, ranks))]

    def _forward_s(self, tokens: float, visual: float, tp: int, where: Cluster) -> float:
        """One prompt through a model that is cut ``tp`` ways: host work, vision tower, text layers, collectives."""
        g, e = self.geometry, self.efficiency
        rate = where.device.flops * e.prefix
        vision = g.vision_flops(visual) / (rate * (1 if e.vision_replicated else tp))
        text = g.text_flops(tokens, tokens * tokens / 2, 1) / (rate * tp)
        links = 2 * g.layers * all_reduce_s(2.0 * tokens * g.hidden, tp, where, e.link)
        return e.input_s_per_visual_token * visual + vision + text + links

    def _backward_s(self, tokens: float, visual: float, where: Cluster) -> float:
        """Backward of a prompt's prefix: twice its forward, and once more where it is recomputed; no host work."""
        g, e, tp = self.geometry, self.efficiency, self.placement.train_tp
        times = 3 if self.placement.recompute else 2
        rate = where.device.flops * e.train
        vision = g.vision_flops(visual) / (rate * (1 if e.vision_replicated else tp))
        text = g.text_flops(tokens, tokens * tokens / 2) / (rate * tp)
        links = 2 * g.layers * all_reduce_s(2.0 * tokens * g.hidden, tp, where, e.link)
        return times * (vision + text + links)

    def _suffix(self, order: Order) -> list[Piece]:
        """Group by group: reference forward, actor forward and backward on the responses, prefix backward."""
        where, ranks = self._where(order), self._ranks(order)
        draw, g, tp = order.draw, self.geometry, self.placement.train_tp
        prompts, responses = draw.suffixes()
        group = max(draw.group_size, 1)
        rate = where.device.flops * self.efficiency.train * tp
        times = 5 if self.placement.recompute else 4
        costs: list[float] = []
        for start in range(0, len(responses), group):
            p, r = prompts[start : start + group].astype(float), responses[start : start + group].astype(float)
            flops = g.text_flops(float(r.sum()), float((r * (p + r / 2)).sum()), float(r.sum()))
            links = 2 * g.layers * all_reduce_s(2.0 * float(r.sum()) * g.hidden, tp, where, self.efficiency.link)
            prompt = float(p.mean()) if len(p) else 0.0
            costs.append(times * (flops / rate + links) + self._backward_s(prompt, prompt * draw.visual_share, where))
        if len(costs) == draw.num_prompts:  # groups are whole: they can be waited for one by one
            return [Piece(f"group {i}", s / ranks, part=i) for i, s in enumerate(costs)]
        return [Piece(f"groups {i}", s) for i, s in enumerate(_rounds(costs, ranks))]

    def _update(self, order: Order) -> list[Piece]:
        """Gradient reduction over ranks, AdamW over FP32 state, cast, and the exchange that fills the engine's shards."""
        where, ranks, p = self._where(order), self._ranks(order), self.placement
        num = self.geometry.weights / p.train_tp
        state = num / (ranks if p.shard_optimizer else 1)
        reduce_s = all_reduce_s(4.0 * num, ranks, where, self.efficiency.link) if ranks > 1 else 0.0
        device = where.device
        on_device = 30.0 * state / (device.memory_bytes_per_s * self.efficiency.memory)
        # Master and both moments come in and go out at once, on two directions of the link; gradients come back too.
        streamed = 16.0 * state / device.host_bytes_per_s if p.host_state else 0.0
        pieces = [Piece("reduce gradients", reduce_s, "copy"), Piece("adamw", max(on_device, streamed))]
        times = p.train_tp // p.rollout_tp
        if times > 1 and self.geometry.weights:
            shard = self.geometry.dtype_bytes * self.geometry.weights / p.rollout_tp
            pieces.append(Piece("exchange shards", all_gather_s(shard, times, where, self.efficiency.link), "copy"))
        return [piece for piece in pieces if piece.seconds > 0]

    def publish_s(self, devices: int) -> float:
        """Seconds to send the weights to a rollout pool: shard by shard between pools, or site by site."""
        g, p, e = self.geometry, self.placement, self.efficiency
        num_bytes = (
            g.dtype_bytes * g.weights * min(1.0, p.delta * (1.0 if p.delta >= 1 else 3.0))
        )  # a 4-byte index each
        if p.sites and p.between_sites is not None:
            return broadcast_s(num_bytes, p.sites, p.between_sites, e.link)
        return broadcast_s(num_bytes / p.rollout_tp, max(devices // p.rollout_tp, 1), self.cluster.between, e.link)


def _prompts(order: Order) -> list[tuple[float, float]]:
    return [(float(p), float(v)) for p, v in zip(order.draw.prompts, order.draw.visual_tokens, strict=True)]


def _ranks(devices: int, tp: int, what: str, pool: str) -> int:
    if devices % tp or devices < tp:
        raise ValueError(
            f"placing {what} on pool {pool!r}: {devices} devices do not divide into groups of {tp}. Choose a "
            "tensor-parallel degree that divides the pool."
        )
    return devices // tp


def _rounds(costs: list[float], ranks: int) -> list[float]:
    """Seconds of each round in which every rank does one item; items sorted, so that a round's items are alike."""
    ordered = sorted(costs, reverse=True)
    return [ordered[i] for i in range(0, len(ordered), ranks)]

"""Costs from sizes: operations over reachable FLOP/s, bytes over reachable bandwidth, plus overheads that are not on the roofline.

Every efficiency is a stated assumption with a default; published systems reach other values, and measured traces should
replace them where there are any (`rollplex.costs.measured`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapreplace

import numpy

from rollplex.bounds import AMOUNT, EFFICIENCY, expect
from rollplex.costs.collectives import all_gather_s, all_reduce_s, broadcast_s, send_s
from rollplex.costs.costs import FIELDS, Order, Piece
from rollplex.costs.decoding import Speed, decode_pieces
from rollplex.costs.geometry import Geometry
from rollplex.costs.placement import Placement, PlacementError
from rollplex.hardware import Cluster


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

    def __post_init__(self) -> None:
        doing = "stating an Efficiency"
        expect(doing, vars(self), prefix=EFFICIENCY, train=EFFICIENCY, memory=EFFICIENCY, link=EFFICIENCY)
        expect(doing, vars(self), token_s=AMOUNT, sequence_s=AMOUNT, input_s_per_visual_token=AMOUNT, prompt_s=AMOUNT)


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
    reference: bool = True
    """Whether a frozen reference model scores the responses too."""

    def __post_init__(self) -> None:
        self.placement.expect(self.geometry)

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
                return [Piece("weights", self.publish_s(), "copy")]
            case other:
                raise ValueError(
                    f"costing a phase that writes {other!r}: a Roofline knows {', '.join(FIELDS)}. Wrap it in Costs of your "
                    "own for any other phase."
                )

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
        """Round by round, in which every rank takes one prompt; sorted, so that a round's prompts are alike."""
        where, ranks = self._where(order), self._ranks(order)
        costs = [
            self._forward_s(p, v, self.placement.train_tp, where) + self.efficiency.prompt_s for p, v in _prompts(order)
        ]
        costs.sort(reverse=True)
        rounds = [costs[i : i + ranks] for i in range(0, len(costs), ranks)]
        return [Piece(f"prompts {i}", r[0], busy=min(sum(r) / (r[0] * ranks), 1.0)) for i, r in enumerate(rounds)]

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
        """Group by group: reference forward, actor forward and backward on the responses, prefix backward.

        A rank has whole groups, since a boundary is on one of them; each piece is a group's part of what the ranks take
        together.
        """
        where, ranks = self._where(order), self._ranks(order)
        draw, g, p = order.draw, self.geometry, self.placement
        prompts, responses = draw.suffixes()
        group = draw.group_size
        rate = where.device.flops * self.efficiency.train * p.train_tp
        # Forwards of reference and actor, a backward of twice the actor's, and its forward again.
        times = self.reference + 3 + p.recompute
        costs: list[float] = []
        for start in range(0, len(responses), group):
            each = slice(start, start + group)
            context, lengths = prompts[each].astype(float), responses[each].astype(float)
            tokens = float(lengths.sum())
            flops = g.text_flops(tokens, float((lengths * (context + lengths / 2)).sum()), tokens)
            links = 2 * g.layers * all_reduce_s(2.0 * tokens * g.hidden, p.train_tp, where, self.efficiency.link)
            prompt = float(context.mean())
            costs.append(times * (flops / rate + links) + self._backward_s(prompt, prompt * draw.visual_share, where))
        scale = _makespan(costs, ranks) / sum(costs)
        busy = min(1 / (scale * ranks), 1.0)
        whole = len(costs) == draw.num_prompts  # then they can be waited for one by one
        return [Piece(f"group {i}", cost * scale, part=i if whole else None, busy=busy) for i, cost in enumerate(costs)]

    def _update(self, order: Order) -> list[Piece]:
        """Gradient reduction over ranks, AdamW over FP32 state, cast, and the exchange that fills the engine's shards."""
        where, ranks, p = self._where(order), self._ranks(order), self.placement
        num = self.geometry.weights / p.train_tp
        state = num / (ranks if p.shard_optimizer else 1)
        reduce_s = all_reduce_s(4.0 * num, ranks, where, self.efficiency.link, apart=p.train_tp)
        device = where.device
        on_device = 30.0 * state / (device.memory_bytes_per_s * self.efficiency.memory)
        # Master and both moments come in and go out at once, on two directions of the link; gradients come back too.
        streamed = 16.0 * state / device.host_bytes_per_s if p.host_state else 0.0
        pieces = [Piece("reduce gradients", reduce_s, "copy"), Piece("adamw", max(on_device, streamed))]
        times = p.train_tp // p.rollout_tp
        if times > 1:
            shard = self.geometry.dtype_bytes * self.geometry.weights / p.rollout_tp
            pieces.append(Piece("exchange shards", all_gather_s(shard, times, where, self.efficiency.link), "copy"))
        return [piece for piece in pieces if piece.seconds > 0]

    def publish_s(self) -> float:
        """Seconds to send the weights to the rollout pool: shard by shard to its replicas, or whole to each site.

        Replicas pass on what they receive, so that the last one ends only latencies after the first; these are left out.
        """
        g, p, e = self.geometry, self.placement, self.efficiency
        # A sparse delta sends a 4-byte index with each 2-byte weight; at a third of the weights, all are cheaper.
        num_bytes = g.dtype_bytes * g.weights * min(1.0, 3.0 * p.delta)
        if p.between_sites is not None:
            return broadcast_s(num_bytes, p.sites, p.between_sites, e.link)
        return send_s(num_bytes / p.rollout_tp, self.cluster.span(self.cluster.num_devices), e.link)


def _prompts(order: Order) -> list[tuple[float, float]]:
    return [(float(p), float(v)) for p, v in zip(order.draw.prompts, order.draw.visual_tokens, strict=True)]


def _ranks(devices: int, tp: int, what: str, pool: str) -> int:
    if devices % tp or devices < tp:
        raise PlacementError(
            f"placing {what} on pool {pool!r}: {devices} devices do not divide into groups of {tp}. Choose a "
            "tensor-parallel degree that divides the pool."
        )
    return devices // tp


def _makespan(costs: list[float], ranks: int) -> float:
    """Seconds until all is done, where whichever rank is free first takes the longest item that is left.

    >>> _makespan([3.0, 2.0, 2.0], 2)
    4.0
    """
    ends = [0.0] * min(ranks, len(costs))
    for cost in sorted(costs, reverse=True):
        heapreplace(ends, ends[0] + cost)
    return max(ends)

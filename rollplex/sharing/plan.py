"""How much of a model a trainer and a rollout engine can hold as one copy: from shapes alone, rank by rank.

It adds up verdicts. It knows no layout (`descriptors`) and no criterion (`classify`), and moves no byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollplex.published import shape
from rollplex.shapes import ModelShape, Part
from rollplex.sharing.classify import NAMES, Case, Sharing, classify, partners
from rollplex.sharing.descriptors import VLLM, Descriptor, MegatronTrainer, TorchTrainer
from rollplex.sharing.layout import Layout

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which rollout shard lies on the device of a training rank."""

    train_rank: int
    """Of the trainer; also the device's number."""
    rollout_replica: int
    """Which copy of the rollout engine the device belongs to."""
    rollout_shard: int
    """Which shard of it."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One of the trainer's tensors."""

    tensor: str
    """Its name."""
    parameters: int
    """Numbers in it over all ranks, each once."""
    case: Case
    """The worst of its ranks'."""
    why: str
    """What was found there."""


@dataclass(frozen=True, kw_only=True)
class SharingPlan:
    """Which parameters are shared, and what the rest costs each device."""

    model: str
    """Name of the model."""
    trainer: str
    """Class of the trainer's descriptor."""
    train_tp: int
    """Training ranks that divide a parameter."""
    rollout_tp: int
    """Rollout ranks that divide it."""
    verdicts: tuple[Verdict, ...]
    """Tensor by tensor."""
    ranks: tuple[Ranks, ...]
    """Who shares a device with whom."""
    rollout_bytes_per_device: int
    """The engine's shard: the one copy of what is shared."""
    buffer_bytes_per_device: int
    """The engine's own copy of case 3, filled anew after every update."""
    duplicate_bytes_per_device: int
    """The trainer's shard: what a second copy of everything would cost."""
    exchange_bytes_per_update: int
    """What a device receives of its rollout shard from the other training ranks after an update."""
    copied_bytes_per_update: int
    """What a device copies within itself: its own part of case 3."""
    element_bytes: int
    """Bytes of a number."""

    def parameters(self, case: Case) -> int:
        """Numbers in tensors of a case."""
        return sum(v.parameters for v in self.verdicts if v.case == case)

    @property
    def num_parameters(self) -> int:
        """Numbers in all."""
        return sum(v.parameters for v in self.verdicts)

    @property
    def shared_share(self) -> float:
        """Share of the parameters of which there is one copy."""
        return 1 - self.parameters(3) / self.num_parameters

    @property
    def saved_share(self) -> float:
        """Share of a duplicate that is not needed."""
        return 1 - self.buffer_bytes_per_device / self.duplicate_bytes_per_device


def sharing_plan(
    model: ModelShape,
    *,
    train_tp: int,
    rollout_tp: int,
    trainer: Descriptor,
    rollout: Descriptor | None = None,
    parts: Sequence[Part] = ("language",),
) -> SharingPlan:
    """Compare every tensor of every training rank with the rollout shard on its device.

    >>> plan = sharing_plan(shape("Qwen2.5-VL-32B"), train_tp=8, rollout_tp=4, trainer=TorchTrainer())
    >>> plan.shared_share, plan.buffer_bytes_per_device
    (1.0, 0)
    """
    ranks = rank_map(train_tp, rollout_tp)
    rollout = rollout or VLLM()
    verdicts: dict[str, Sharing] = {}
    costs = []
    for place in ranks:
        train = trainer.layouts(model, train_tp, place.train_rank, *parts)
        engine = rollout.layouts(model, rollout_tp, place.rollout_shard, *parts)
        found = partners(train, engine)
        sharings = [classify(layout, found[layout.tensor]) for layout in train]
        for layout, sharing in zip(train, sharings, strict=True):
            seen = verdicts.get(layout.tensor)
            verdicts[layout.tensor] = sharing if seen is None or sharing.case > seen.case else seen
        costs.append(list(zip(train, found.values(), strict=True)))
    per_device = [_cost(device, verdicts) for device in costs]
    worst = {name: max(cost[name] for cost in per_device) for name in per_device[0]}
    sizes = {p.name: p.num_elements for p in model.parameters(*parts)}
    return SharingPlan(
        model=model.name,
        trainer=type(trainer).__name__,
        train_tp=train_tp,
        rollout_tp=rollout_tp,
        verdicts=tuple(
            Verdict(
                tensor=layout.tensor,
                parameters=sum(sizes[name] for name in dict.fromkeys(p.name for p in layout.pieces)),
                case=verdicts[layout.tensor].case,
                why=verdicts[layout.tensor].why,
            )
            for layout, _ in costs[0]
        ),
        ranks=ranks,
        element_bytes=costs[0][0][0].element_bytes,
        **worst,
    )


def rank_map(train_tp: int, rollout_tp: int) -> tuple[Ranks, ...]:
    """Device by device, the training rank and the rollout shard on it, so that the one's slice lies in the other's.

    Neighbouring training ranks make up one shard, so a rollout replica is every q-th device.

    >>> [(r.rollout_replica, r.rollout_shard) for r in rank_map(4, 2)]
    [(0, 0), (1, 0), (0, 1), (1, 1)]
    """
    if min(train_tp, rollout_tp) < 1 or train_tp % rollout_tp:
        raise ValueError(
            f"sharing weights between training TP {train_tp} and rollout TP {rollout_tp}: their ratio "
            f"{train_tp}/{rollout_tp} is no positive whole number, so a training slice would straddle two rollout "
            "shards. Choose a rollout TP that divides the training TP."
        )
    q = train_tp // rollout_tp
    return tuple(Ranks(train_rank=r, rollout_replica=r % q, rollout_shard=r // q) for r in range(train_tp))


def _cost(device: Sequence[tuple[Layout, list[Layout]]], verdicts: dict[str, Sharing]) -> dict[str, int]:
    """Bytes on one device, and those that move after an update."""
    rollout = {partner.tensor: partner for _, matches in device for partner in matches}
    total = dict.fromkeys(("duplicate_bytes_per_device", "buffer_bytes_per_device", "copied_bytes_per_update"), 0) | {
        "rollout_bytes_per_device": sum(layout.nbytes for layout in rollout.values())
    }
    own = 0
    for layout, matches in device:
        here = [(block, theirs) for p in matches for theirs in p.held for block in layout.held]
        common = [c for c in (block.common(theirs) for block, theirs in here) if c is not None]
        num_bytes = sum(c.rows * c.columns for c in common) * layout.element_bytes
        own += num_bytes
        total["duplicate_bytes_per_device"] += layout.nbytes
        if verdicts[layout.tensor].case == 3:
            names = {piece.name for piece in layout.pieces}
            blocks = [block for p in matches for block in p.held if block.name in names]
            total["buffer_bytes_per_device"] += sum(b.rows * b.columns for b in blocks) * layout.element_bytes
            total["copied_bytes_per_update"] += num_bytes
    return total | {"exchange_bytes_per_update": total["rollout_bytes_per_device"] - own}


TRAINERS: dict[str, Descriptor] = {"megatron": MegatronTrainer(), "torch": TorchTrainer()}
"""Word of the command line -> descriptor."""


def layouts(
    model: str = "Qwen2.5-VL-32B",
    train_tp: int = 8,
    rollout_tp: int = 4,
    trainer: str = "megatron",
    parts: Sequence[Part] = ("language",),
) -> dict[str, Any]:
    """Print and return what a published model shares between a trainer and vLLM."""
    if trainer not in TRAINERS:
        raise ValueError(f"planning layouts: no trainer {trainer!r}; choose one of {', '.join(TRAINERS)}")
    unknown = sorted(set(parts) - {"language", "vision"})
    if unknown or not parts:
        raise ValueError(f"planning layouts: no parts {unknown}; choose from language, vision")
    known = shape(model)
    plan = sharing_plan(known, train_tp=train_tp, rollout_tp=rollout_tp, trainer=TRAINERS[trainer], parts=parts)
    print(text(plan))
    return document(plan)


def document(plan: SharingPlan) -> dict[str, Any]:
    """The plan with the keys of the command's JSON."""
    cases: list[Case] = [1, 2, 3]
    return {
        "kind": "derived",
        "model": plan.model,
        "trainer": plan.trainer,
        "train_tp": plan.train_tp,
        "rollout_tp": plan.rollout_tp,
        "cases": [
            {
                "case": case,
                "name": NAMES[case],
                "parameters": plan.parameters(case),
                "share": plan.parameters(case) / plan.num_parameters,
                "bytes": plan.parameters(case) * plan.element_bytes,
            }
            for case in cases
        ],
        "shared_share": plan.shared_share,
        "saved_share": plan.saved_share,
        "rollout_bytes_per_device": plan.rollout_bytes_per_device,
        "buffer_bytes_per_device": plan.buffer_bytes_per_device,
        "duplicate_bytes_per_device": plan.duplicate_bytes_per_device,
        "exchange_bytes_per_update": plan.exchange_bytes_per_update,
        "copied_bytes_per_update": plan.copied_bytes_per_update,
        "ranks": [asdict(place) for place in plan.ranks],
    }


def text(plan: SharingPlan) -> str:
    """The plan as a table."""
    cases: list[Case] = [1, 2, 3]
    lines = [f"{plan.model}: {plan.trainer} at TP {plan.train_tp} over vLLM at TP {plan.rollout_tp}"]
    for case in cases:
        num = plan.parameters(case)
        lines.append(f"  case {case}  {NAMES[case]:20}  {num / 1e9:7.3f} B  {num / plan.num_parameters:7.2%}")
    buffer, duplicate = plan.buffer_bytes_per_device / GIB, plan.duplicate_bytes_per_device / GIB
    received, copied = plan.exchange_bytes_per_update / GIB, plan.copied_bytes_per_update / GIB
    q = plan.train_tp // plan.rollout_tp
    replicas = [[r.train_rank for r in plan.ranks if r.rollout_replica == i] for i in range(q)]
    lines += [
        f"  shared  {plan.shared_share:.2%}, one rollout shard of {plan.rollout_bytes_per_device / GIB:.2f} GiB a device",
        f"  buffer  {buffer:.2f} GiB for case 3, {plan.saved_share:.1%} below a duplicate of {duplicate:.2f} GiB",
        f"  update  {received:.2f} GiB received by a device, {copied:.2f} GiB copied within it",
        f"  devices of each rollout replica: {replicas}",
    ]
    return "\n".join(lines)

"""Peaks of a step whose objects keep their contracts, and of one that breaks one of them.

It adds up a footprint's sizes by the contracts' stages. It measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollplex.memory.contracts import CONTRACTS, STAGES, Contract, Extent, Stage
from rollplex.memory.footprint import Footprint


@dataclass(frozen=True, kw_only=True)
class Residency:
    """Which of the mechanisms are on; the default is all of them."""

    name: str = "managed"
    """What a person calls the combination."""
    offload_state: bool = True
    """Master weights and moments live on the host outside of the update."""
    release_rollout: bool = True
    """The rollout KV is freed after decoding."""
    chunk_optimizer: bool = True
    """The update streams its state chunk by chunk."""
    share_weights: bool = True
    """One copy of the actor for trainer and engine."""


POLICIES = (
    Residency(),
    Residency(name="no state offload", offload_state=False),
    Residency(name="rollout KV kept", release_rollout=False),
    Residency(name="optimizer not chunked", chunk_optimizer=False),
    Residency(name="weights not shared", share_weights=False),
)
"""Everything managed, and the paper's four ablations."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What is on the device at the fullest moment of one stage."""

    stage: Stage
    """P1, P2 or P3."""
    objects: tuple[tuple[str, float], ...]
    """(object, GiB), the largest first."""

    @property
    def gib(self) -> float:
        """Their sum."""
        return sum(size for _, size in self.objects)

    @property
    def derivation(self) -> str:
        """The sum, written out."""
        return " + ".join(f"{name} {size:.1f}" for name, size in self.objects if size >= 0.05)


def peaks(table: Footprint, residency: Residency = POLICIES[0]) -> tuple[Peak, ...]:
    """The peak of every stage.

    >>> from rollplex.memory.footprint import footprint
    >>> [round(peak.gib) for peak in peaks(footprint("Qwen2.5-VL-32B"))]
    [73, 61, 32]
    """
    found = []
    for stage in STAGES:
        objects = {c.name: _resident(table, c, stage, residency) for c in CONTRACTS}
        # Not in the contracts: what never leaves, and the price of what weight sharing cannot share.
        objects["runtime buffers"] = table.assumptions.runtime_gib
        if residency.share_weights:
            objects["engine's copy of case 3"] = table.buffer_gib
        else:
            objects["trainer's own weights"] = table.gib("weights")
        ordered = sorted(objects.items(), key=lambda item: -item[1])
        found.append(Peak(stage=stage, objects=tuple(ordered)))
    return tuple(found)


def _resident(table: Footprint, contract: Contract, stage: Stage, residency: Residency) -> float:
    """GiB of an object in a stage."""
    extent = _extent(contract, stage, residency)
    if extent is None:
        return 0.0
    whole = _whole(table, contract.name)
    if extent == "chunks":
        return whole * min(3 / table.assumptions.optimizer_chunks, 1)  # one loading, one stepping, one leaving
    return table.layer_activations_gib if extent == "a layer" else whole


def _extent(contract: Contract, stage: Stage, residency: Residency) -> Extent | None:
    """How much of an object is there: by its contract, unless the mechanism behind it is off."""
    if contract.name == "rollout KV" and not residency.release_rollout:
        return "whole"
    if contract.name == "master weights and Adam moments" and not residency.offload_state:
        return "whole"
    extent = contract.device.get(stage)
    return "whole" if extent == "chunks" and not residency.chunk_optimizer else extent


def _whole(table: Footprint, name: str) -> float:
    match name:
        case "rollout KV" | "gradients" | "reference weights" | "reference boundary KV":
            return table.gib(name)
        case "prefix activations":
            return table.gib("activations")
        case "actor boundary KV":
            return table.gib("boundary KV")
        case "actor weights":
            return table.gib("rollout weights")  # the one copy has the shape of the engine's shard
        case "master weights and Adam moments":
            return table.gib("master weights") + table.gib("Adam moments")
        case "suffix activations":
            return table.checkpoints_gib + table.layer_activations_gib
        case "prefix log-probabilities":
            tokens = table.assumptions.prompts / table.assumptions.train_dp * table.assumptions.prompt_tokens
            return tokens * 4 / 2**30
        case _:
            raise ValueError(f"adding up a peak: no size for {name!r}; give it one in rollplex/memory/managed.py")

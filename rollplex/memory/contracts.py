"""What every object of a training step owes: who makes it, who reads it, and when it may be on the device.

The paper's Table 3 as data. The one invariant behind it: an object is on the device only between its first
latency-critical use and its last. Nothing here moves a byte; footprints add up from it and executors are held to it.

Stages: P1 decode with both prefixes, P2 suffixes and backward, P3 update and publishing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Stage = Literal["P1", "P2", "P3"]
"""Between two barriers of the schedule."""

STAGES: tuple[Stage, ...] = ("P1", "P2", "P3")
"""In order."""

Category = Literal["permanent", "snapshot", "boundary", "phase-local"]
"""May move but never be dropped; made again from permanent state; pinned until its suffix; gone with its phase."""

Autograd = Literal["none", "attached", "detached", "by role", "leaf"]
"""No duty; the loss reaches through it; cut off on purpose; the actor's attached and the reference's detached; where
gradients gather."""

Extent = Literal["whole", "chunks", "a layer"]
"""How much of an object is on the device at once."""

Away = Literal["freed", "host", "recomputed", "rebuilt"]
"""What becomes of an object that is not on the device."""

Phase = Literal["Prefix(policy)", "Prefix(reference)", "Decode", "Suffix", "Update", "frozen"]
"""Makers and readers; ``frozen`` made what no step changes."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The duties of one object."""

    name: str
    """What a person calls it."""
    owner: str
    """Name in ledgers and memory samples."""
    producers: tuple[Phase, ...]
    """Who makes it."""
    consumers: tuple[Phase, ...]
    """Who reads it."""
    category: Category
    """Permanent, regenerable snapshot, boundary or phase-local."""
    autograd: Autograd
    """Its part in the backward pass."""
    device: dict[Stage, Extent]
    """Stages in which it may be on the device, and how much of it at once."""
    away: tuple[Away, ...]
    """What may become of it in between or after; the first is the default."""
    peaks: tuple[Stage, ...]
    """Stages whose peak it counts toward with all its bytes."""
    residency: str
    """The rule in words."""
    parts: tuple[str, ...] = ()
    """Further names under which a trace counts bytes of it."""

    @property
    def owners(self) -> tuple[str, ...]:
        """Every name that it has in ledgers and memory samples."""
        return (self.owner, *self.parts)


CONTRACTS: tuple[Contract, ...] = (
    Contract(
        name="rollout KV",
        owner="engine.kv",
        producers=("Decode",),
        consumers=("Decode",),
        category="phase-local",
        autograd="none",
        device={"P1": "whole"},
        away=("freed",),
        peaks=("P1",),
        residency="on the device while decoding, freed when generation ends",
        parts=("rollout.kv", "engine.kv pool"),
    ),
    Contract(
        name="actor boundary KV",
        owner="policy.boundary",
        producers=("Prefix(policy)",),
        consumers=("Suffix",),
        category="boundary",
        autograd="attached",
        device={"P1": "whole", "P2": "whole"},
        away=("freed",),
        peaks=("P1", "P2"),
        residency="on the device until its suffix has gone forward and backward",
        parts=("policy_prefix.boundary", "policy_prefix.gradients"),
    ),
    Contract(
        name="reference boundary KV",
        owner="reference.boundary",
        producers=("Prefix(reference)",),
        consumers=("Suffix",),
        category="boundary",
        autograd="detached",
        device={"P1": "whole", "P2": "whole"},
        away=("freed",),
        peaks=("P1", "P2"),
        residency="on the device until its suffix is scored",
        parts=("reference_prefix.boundary",),
    ),
    Contract(
        name="reference weights",
        owner="reference.weights",
        producers=("frozen",),
        consumers=("Prefix(reference)", "Suffix"),
        category="permanent",
        autograd="none",
        device={"P1": "whole", "P2": "whole"},
        away=("host",),
        peaks=("P1", "P2"),
        residency="in pinned host memory, loaded around its prefix and around scoring",
    ),
    Contract(
        name="prefix log-probabilities",
        owner="prefix.logprobs",
        producers=("Prefix(policy)", "Prefix(reference)"),
        consumers=("Suffix",),
        category="boundary",
        autograd="by role",
        device={"P1": "whole", "P2": "whole"},
        away=("freed", "host"),
        peaks=(),
        residency="small; until its suffix; here the hidden states that first log-probabilities are made of",
        parts=("policy_prefix.logprobs", "reference_prefix.logprobs"),
    ),
    Contract(
        name="prefix activations",
        owner="policy.tape",
        producers=("Prefix(policy)",),
        consumers=("Suffix",),
        category="phase-local",
        autograd="attached",
        device={"P1": "a layer", "P2": "a layer"},
        away=("host", "recomputed"),
        peaks=(),
        residency="offloaded as they are made or dropped and recomputed; handles and a layer in flight remain",
        parts=("policy_prefix.tape", "policy.activations"),
    ),
    Contract(
        name="suffix activations",
        owner="suffix.activations",
        producers=("Suffix",),
        consumers=("Suffix",),
        category="phase-local",
        autograd="attached",
        device={"P2": "whole"},
        away=("freed",),
        peaks=("P2",),
        residency="on the device, checkpointed by layer",
        parts=("suffix.workspace",),
    ),
    Contract(
        name="gradients",
        owner="policy.gradients",
        producers=("Suffix",),
        consumers=("Update",),
        category="phase-local",
        autograd="leaf",
        device={"P2": "whole", "P3": "chunks"},
        away=("host", "freed"),
        peaks=("P2",),
        residency="offloaded chunk by chunk as they become final, back on the device with their chunk of the update",
        parts=("gradients",),
    ),
    Contract(
        name="actor weights",
        owner="policy.weights",
        producers=("Update",),
        consumers=("Decode", "Prefix(policy)", "Suffix"),
        category="snapshot",
        autograd="leaf",
        device={"P1": "whole", "P2": "whole", "P3": "whole"},
        away=("rebuilt",),
        peaks=("P1", "P2", "P3"),
        residency="on the device; dropped at the barrier before the update and rebuilt chunk by chunk",
        parts=("weights (shared)",),
    ),
    Contract(
        name="master weights and Adam moments",
        owner="policy.optimizer",
        producers=("Update",),
        consumers=("Update",),
        category="permanent",
        autograd="none",
        device={"P3": "chunks"},
        away=("host",),
        peaks=(),
        residency="in pinned host memory; a chunk at a time on the device",
        parts=("optimizer.state",),
    ),
)
"""The ten objects of a step."""

OWNERS: Mapping[str, Contract] = {owner: contract for contract in CONTRACTS for owner in contract.owners}
"""A name in ledgers and memory samples -> whose it is."""


def contract(name: str) -> Contract:
    """The contract of an object, by its name or a name it has in ledgers.

    >>> contract("policy.boundary").autograd
    'attached'
    """
    for candidate in CONTRACTS:
        if name in (candidate.name, *candidate.owners):
            return candidate
    raise ValueError(f"looking up a contract: no object {name!r}; there are {', '.join(c.name for c in CONTRACTS)}")

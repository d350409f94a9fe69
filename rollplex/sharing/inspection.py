"""Which bytes of a policy an engine reads in place, told by addresses: what is, not what was planned.

It looks at tensors in this process. It asks no engine how it was made, and draws nothing (`rollplex.views.sharing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from rollplex.engines.engine import Engine
from rollplex.policy import Policy
from rollplex.sharing.bind import Binding
from rollplex.sharing.classify import Case

State = Literal["shared", "transposed", "copied", "unmatched"]
"""One copy; one copy that is stored by columns; two copies; on one side only."""

STATES: tuple[State, ...] = ("shared", "transposed", "copied", "unmatched")
"""From best to worst."""

OF_CASE: dict[Case, State] = {1: "shared", 2: "transposed", 3: "copied"}
"""What a planned case looks like."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """One parameter, or one tensor that only an engine has."""

    name: str
    """The policy's name; the engine's place among its weights where the policy has none."""
    state: State
    """Whether it is one copy."""
    nbytes: int
    """Its bytes, once."""
    note: str = ""
    """What else was seen."""

    @property
    def module(self) -> str:
        """The module that it belongs to: its name without the last part."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Every parameter of both sides."""

    shares: tuple[Share, ...]
    """One a parameter, then what only the engine has."""
    held_bytes: int
    """What both sides hold together, shared bytes once."""
    naive_bytes: int
    """What they would hold with a copy each."""

    def nbytes(self, state: State) -> int:
        """Bytes in a state."""
        return sum(share.nbytes for share in self.shares if share.state == state)

    @property
    def shared_share(self) -> float:
        """Share of the bytes of which there is one copy, whichever way it is stored."""
        total = sum(share.nbytes for share in self.shares)
        return (self.nbytes("shared") + self.nbytes("transposed")) / total if total else 1.0


def inspect(policy: Policy, engine: Engine) -> Inspection:
    """Compare the addresses of a policy's weights with those of the weights that an engine reads.

    >>> policy = Policy.tiny()
    >>> found = inspect(policy, policy.engine())
    >>> found.shared_share, found.held_bytes == policy.weights.nbytes, found.naive_bytes / found.held_bytes
    (1.0, True, 2.0)
    """
    theirs = engine.weights.tensors
    spans = _merged(_span(tensor) for tensor in theirs)
    ours = _merged(_span(leaf) for leaf in policy.model.leaves.values())
    own = [tensor for tensor in theirs if not _inside(_span(tensor), ours)]
    copies = _copies(policy.model.leaves, theirs, own)
    shares = []
    for name, (leaf_name, rows) in policy.model.fused.places.items():
        leaf = policy.model.leaves[leaf_name]
        if _inside(_span(leaf[rows]), spans):
            state: State = "transposed" if _by_columns(leaf) else "shared"
            shares.append(Share(name=name, state=state, nbytes=leaf[rows].nbytes))
        elif leaf_name in copies:
            note = "" if copies[leaf_name] else "the engine's numbers are others: stale"
            shares.append(Share(name=name, state="copied", nbytes=leaf[rows].nbytes, note=note))
        else:
            note = "the engine has no tensor with these numbers"
            shares.append(Share(name=name, state="unmatched", nbytes=leaf[rows].nbytes, note=note))
    extra = sum(tensor.nbytes for tensor in own) - sum(policy.model.leaves[name].nbytes for name in copies)
    if extra > 0:
        note = "tensors of the engine that are none of the policy's"
        shares.append(Share(name="engine.own", state="unmatched", nbytes=extra, note=note))
    held = policy.weights.nbytes + sum(tensor.nbytes for tensor in own)
    naive = policy.weights.nbytes + sum(tensor.nbytes for tensor in _distinct(theirs))
    return Inspection(shares=tuple(shares), held_bytes=held, naive_bytes=naive)


def inspect_binding(binding: Binding) -> Inspection:
    """The tensors of a training rank against the rollout shard on its device, as they were bound."""
    pairing = binding.pairing
    shares = [
        Share(
            name=layout.tensor,
            state=OF_CASE[pairing.sharings[layout.tensor].case],
            nbytes=layout.nbytes,
            note=pairing.sharings[layout.tensor].why,
        )
        for layout in pairing.train
    ]
    train = sum(layout.nbytes for layout in pairing.train)
    engine = sum(layout.nbytes for layout in pairing.engine)
    return Inspection(
        shares=tuple(shares), held_bytes=train + engine - pairing.shared_bytes, naive_bytes=train + engine
    )


def _copies(
    leaves: Mapping[str, torch.Tensor], theirs: Sequence[torch.Tensor], own: Sequence[torch.Tensor]
) -> dict[str, bool]:
    """Weights of which the engine has a copy -> whether its numbers are the same.

    Tensors of the same shapes in the same order are taken for the same weights; else equal numbers have to tell.
    """
    addresses = {tensor.data_ptr() for tensor in own}
    if [tuple(leaf.shape) for leaf in leaves.values()] == [tuple(tensor.shape) for tensor in theirs]:
        pairs = zip(leaves.items(), theirs, strict=True)
        return {name: _equal(leaf, t) for (name, leaf), t in pairs if t.data_ptr() in addresses}
    return {name: True for name, leaf in leaves.items() if any(_equal(leaf, tensor) for tensor in own)}


def _equal(leaf: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor holds a weight's numbers; rows beyond the weight's are padding."""
    if leaf.shape[1:] != tensor.shape[1:] or leaf.shape[0] > tensor.shape[0] or leaf.dtype != tensor.dtype:
        return False
    return bool(torch.equal(leaf, tensor[: leaf.shape[0]].to(leaf.device)))


Span = tuple[int, int]


def _span(tensor: torch.Tensor) -> Span:
    """First address of a tensor and the one after its last."""
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _inside(span: Span, merged: Sequence[Span]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in merged)


def _distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Each stretch of memory once: a tied weight is not two."""
    return list({_span(tensor): tensor for tensor in tensors}.values())


def _by_columns(leaf: torch.Tensor) -> bool:
    return leaf.dim() == 2 and min(leaf.shape) > 1 and leaf.stride(0) == 1

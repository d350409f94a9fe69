"""An engine's parameters as views of the policy's storages, bound from what its own loader was seen to copy.

It knows the policy's distinct weights, the engine's parameters by name and the copies between them. It does not know
which engine this is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rollplex.model.fuse import Fused
from rollplex.sharing.recorded import Copied


@dataclass(frozen=True, slots=True, eq=False)
class _Alias:
    """Where one parameter lies in a distinct weight of the policy, in elements."""

    weight: str
    offset: int
    shape: torch.Size

    def of(self, leaf: torch.Tensor) -> torch.Tensor:
        """The view of the policy's weight, without autograd."""
        return leaf.detach().view(-1)[self.offset : self.offset + self.shape.numel()].view(self.shape)

    def holds(self, parameter: torch.Tensor, leaf: torch.Tensor) -> bool:
        """Whether the parameter still is this view."""
        return (
            parameter.data_ptr() == leaf.data_ptr() + self.offset * leaf.element_size()
            and parameter.dtype == leaf.dtype
            and parameter.shape == self.shape
            and parameter.is_contiguous()
            and leaf.numel() >= self.offset + self.shape.numel()
        )


class SharedWeights:
    """Binds an engine's parameters to the policy's weights, and proves at any time that they still are one.

    >>> fused, engine = Fused(), nn.Linear(4, 2, bias=False)
    >>> ours = fused.single("mlp", nn.ModuleDict({"up": nn.Linear(4, 2, bias=False)}), "up")
    >>> copy = Copied(
    ...     tensor="weight", offset=0, source="mlp.up.weight", source_offset=0, shape=(2, 4), strides=(4, 1), source_strides=(4, 1)
    ... )
    >>> shared = SharedWeights(engine, fused, [copy])
    >>> shared.bind()
    >>> shared.share, engine.weight.data_ptr() == ours.weight.data_ptr()
    (1.0, True)
    """

    def __init__(self, engine: nn.Module, fused: Fused, copies: Sequence[Copied]) -> None:
        self._engine = engine
        self._leaves = fused.leaves
        self.copies = tuple(copies)
        parameters = dict(engine.named_parameters())
        by_tensor: dict[str, list[Copied]] = {name: [] for name in parameters}
        for copy in copies:
            by_tensor[copy.tensor].append(copy)
        self._aliases: dict[str, _Alias] = {}
        problems: list[str] = []
        for name, parameter in parameters.items():
            found = _alias(parameter, by_tensor[name], fused)
            if isinstance(found, _Alias):
                self._aliases[name] = found
            else:
                problems.append(f"engine's {name}: {found}")
        unread = sorted(set(fused.leaves) - {alias.weight for alias in self._aliases.values()})
        problems += [f"policy's {name}: no parameter of the engine lies in it" for name in unread]
        if problems:
            sides = f"{len(parameters)} parameters of the engine and {len(fused.leaves)} weights of the policy"
            raise ValueError(
                f"sharing weights: of {sides}, {len(problems)} do not fit together. Is the engine's model the policy's?\n  "
                + "\n  ".join(problems[:12])
            )

    def unload(self) -> None:
        """Let go of what the engine allocated: its parameters become shapes without memory until they are bound."""
        self._replace({name: p.to("meta") for name, p in self._engine.named_parameters()})

    def bind(self) -> None:
        """Make every parameter of the engine a view of the policy's weight."""
        self._replace({name: alias.of(self._leaves[alias.weight]) for name, alias in self._aliases.items()})
        self.check()

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The engine's parameters by its own names."""
        return dict(self._engine.named_parameters())

    @property
    def share(self) -> float:
        """Part of the engine's numbers that lie in the policy's storages, told by address."""
        storages = {leaf.untyped_storage().data_ptr() for leaf in self._leaves.values()}
        parameters = self.tensors.values()
        total = sum(p.numel() for p in parameters)
        return sum(p.numel() for p in parameters if p.untyped_storage().data_ptr() in storages) / total

    def check(self) -> None:
        """Refuse to go on once a parameter or a weight was replaced, cast or resized: the bytes are no longer one."""
        parameters = dict(self._engine.named_parameters())
        for name, alias in self._aliases.items():
            ours, theirs = self._leaves[alias.weight], parameters.get(name)
            if theirs is not None and alias.holds(theirs, ours):
                continue
            found = "gone" if theirs is None else _place(theirs)
            raise RuntimeError(
                f"using shared weights: the engine's {name} is {found}, and the policy's {alias.weight} is {_place(ours)}: "
                "one of the two was replaced, cast or resized. Change weights in place, or close the engine and make another."
            )

    def _replace(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put new parameters in the places of the old ones; a tied parameter stays one in all its places."""
        names = {id(parameter): name for name, parameter in self._engine.named_parameters()}
        fresh = {name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()}
        for module in list(self._engine.modules()):
            for place, parameter in list(module.named_parameters(recurse=False)):
                module.register_parameter(place, fresh[names[id(parameter)]])


def _place(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} at {tensor.data_ptr():#x}"


def _alias(parameter: torch.Tensor, copies: Sequence[Copied], fused: Fused) -> _Alias | str:
    """Where a parameter lies in the policy's weights, or why it lies nowhere."""
    if not copies:
        return "its loader copied nothing into it from the checkpoint"
    if not all(copy.dense for copy in copies):
        return "its loader copied slices that are not dense"
    places = [(fused.places[copy.source], copy) for copy in copies]
    weights = sorted({leaf for (leaf, _), _ in places})
    if len(weights) > 1:
        return f"spread over the policy's {', '.join(weights)}"
    leaf = fused.leaves[weights[0]]
    width = leaf[0].numel()
    shifts = {rows.start * width + copy.source_offset - copy.offset for (_, rows), copy in places}
    covered = sum(copy.num_elements for copy in copies)
    if len(shifts) > 1:
        return f"its parts lie in another order than in the policy's {weights[0]}"
    # An engine pads a vocabulary with rows that nobody reads: ids never reach them and logits are cut.
    shape = torch.Size((covered // parameter[0].numel(), *parameter.shape[1:]))
    if shape.numel() != covered or shape[0] > parameter.shape[0] or min(copy.offset for copy in copies):
        return f"{covered} of its {parameter.numel()} numbers come from the policy's {weights[0]}"
    if parameter.dtype != leaf.dtype or parameter.device != leaf.device:
        return f"{parameter.dtype} on {parameter.device}; the policy's {weights[0]} is {leaf.dtype} on {leaf.device}"
    return _Alias(weights[0], shifts.pop(), shape)

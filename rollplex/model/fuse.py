"""Fused storages: projections that read the same input become row blocks of one tensor.

The Hugging Face module's own parameters turn into views of those blocks, so that there is one copy of every
weight, whoever reads it: ``save_pretrained``, the lean forward, or the rollout engine.

Layout: ``[out_0 + out_1 + ..., in]``, the row order that vLLM uses for ``qkv_proj`` and ``gate_up_proj``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(eq=False)
class Fused:
    """The distinct weights of a model: leaf tensors by name, and where each module parameter lies in them."""

    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    """Name of a fused weight -> the leaf tensor that autograd and the optimizer see."""
    places: dict[str, tuple[str, slice]] = field(default_factory=dict)
    """Name of a module parameter -> (name of its leaf, rows of the leaf)."""

    def fuse(self, prefix: str, owner: nn.Module, parts: Sequence[str], name: str) -> Linear:
        """Lay linear modules ``parts`` of ``owner`` out as one and make their parameters views of it."""
        modules = [owner.get_submodule(part) for part in parts]
        weight = self._stack(prefix, parts, modules, name, "weight")
        bias = None if modules[0].bias is None else self._stack(prefix, parts, modules, name, "bias")
        return Linear(weight=weight, bias=bias)

    def single(self, prefix: str, owner: nn.Module, part: str) -> Linear:
        """A linear module by itself."""
        return self.fuse(prefix, owner, [part], part)

    def vector(self, prefix: str, owner: nn.Module, name: str = "weight") -> torch.Tensor:
        """A parameter that is nobody's linear weight: a norm, an embedding, a convolution."""
        return self._place(f"{prefix}.{name}", [(f"{prefix}.{name}", owner, name)])

    def _stack(
        self, prefix: str, parts: Sequence[str], modules: Sequence[nn.Module], name: str, kind: str
    ) -> torch.Tensor:
        named = [(f"{prefix}.{part}.{kind}", module, kind) for part, module in zip(parts, modules, strict=True)]
        return self._place(f"{prefix}.{name}.{kind}", named)

    def _place(self, leaf_name: str, named: Sequence[tuple[str, nn.Module, str]]) -> torch.Tensor:
        values = [module.get_parameter(attribute).detach() for _, module, attribute in named]
        leaf = torch.cat(values).contiguous() if len(values) > 1 else values[0].contiguous()
        self.leaves[leaf_name] = leaf
        start = 0
        for (name, module, attribute), value in zip(named, values, strict=True):
            rows = slice(start, start := start + value.shape[0])
            module.register_parameter(attribute, nn.Parameter(leaf[rows], requires_grad=False))
            self.places[name] = (leaf_name, rows)
        return leaf


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Weight and bias of one (possibly fused) projection."""

    weight: torch.Tensor
    """``[out, in]``."""
    bias: torch.Tensor | None
    """``[out]``, or None."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in] -> [..., out]``."""
        return nn.functional.linear(x, self.weight, self.bias)

"""The policy that is trained, and the frozen reference it is held against.

Each owns its weights. Nothing here runs a phase.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from transformers import AutoModelForImageTextToText, GenerationConfig
from transformers.utils import logging

from rollplex.costs.geometry import Geometry
from rollplex.ingest import Ingest
from rollplex.model.model import Model
from rollplex.prompts import PromptBatch
from rollplex.resource import Resource
from rollplex.shapes import ModelShape

if TYPE_CHECKING:
    from rollplex.engines.torch_engine import TorchEngine
    from rollplex.memory.memory import Memory

TINY = Path(__file__).parent / "assets" / "tiny-qwen2_5_vl"
"""The shipped model, a normal Hugging Face directory."""


class Policy:
    """The model that is trained: weights, gradients, and the version that every update raises.

    >>> policy = Policy.tiny()
    >>> policy.version
    0
    """

    def __init__(self, model: Model, ingest: Ingest) -> None:
        self.model = model
        self.ingest = ingest
        self.version = 0
        self.memory: Memory | None = None
        """The device with a budget that it lives in, if any."""
        for leaf in model.leaves.values():
            leaf.requires_grad_(True)
            leaf.grad = torch.zeros_like(leaf)
        for name, (leaf, rows) in model.fused.places.items():
            parameter = model.module.get_parameter(name)
            parameter.requires_grad_(True)
            gradient = model.leaves[leaf].grad
            parameter.grad = None if gradient is None else gradient[rows]

    @classmethod
    def tiny(cls, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Self:
        """The shipped Qwen2.5-VL of a few million parameters; loads offline in a second."""
        with without_progress_bar():
            return cls.from_pretrained(TINY, dtype=dtype, device=device)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu", **options: Any
    ) -> Self:
        """A checkpoint by hub name or directory; ``options`` go to transformers' ``from_pretrained``."""
        loaded: Any = AutoModelForImageTextToText.from_pretrained(str(name), dtype=dtype, **options)
        module: Any = loaded.to(device)
        if module.can_generate() and module.generation_config is None:
            module.generation_config = GenerationConfig.from_model_config(module.config)
        return cls(Model.of(module), Ingest.from_pretrained(name, module.config))

    def save_pretrained(self, path: str | Path) -> Path:
        """Write a plain Hugging Face directory that transformers, vLLM and `from_pretrained` load."""
        # Where weights are shared with a tensor-parallel trainer some are stored by columns; a checkpoint has rows.
        state = {name: tensor.contiguous() for name, tensor in self.model.module.state_dict().items()}
        self.model.module.save_pretrained(path, state_dict=state)
        self.ingest.save_pretrained(path)
        return Path(path)

    def engine(self, **options: Any) -> TorchEngine:
        """The built-in rollout engine over this policy's own storages: no byte is copied."""
        from rollplex.engines.torch_engine import TorchEngine

        return TorchEngine(self, **options)

    def prompts(self, rows: list[Mapping[str, Any]], *, step: int = 0, seed: int = 0) -> PromptBatch:
        """Rows of a task as the canonical prompts of this model."""
        return self.ingest.batch(rows, step=step, seed=seed)

    @property
    def geometry(self) -> Geometry:
        """The sizes that decide what the model costs."""
        return Geometry.of(ModelShape.from_config(self.model.module.config), dtype_bytes=self.model.dtype.itemsize)

    @property
    def weights(self) -> Resource:
        """The distinct weights."""
        return Resource("policy.weights", tuple(self.model.leaves.values()))

    @property
    def gradients(self) -> Resource:
        """The gradient buffers; allocated once, never None."""
        return Resource("policy.gradients", tuple(_gradient(leaf) for leaf in self.model.leaves.values()))

    def freeze(self, *parts: str) -> None:
        """Leave every weight as it is whose name begins like this, from the next step on; a vision tower, usually.

        >>> policy = Policy.tiny()
        >>> policy.freeze("model.visual")
        >>> sum(leaf.requires_grad for leaf in policy.model.leaves.values())
        30

        No gradient is made for it, and no optimizer touches it. ``policy.freeze("")`` freezes all.
        """
        for part in parts:
            found = [leaf for name, leaf in self.model.leaves.items() if name.startswith(part)]
            if not found:
                tops = sorted({".".join(name.split(".")[:2]) for name in self.model.leaves})
                raise ValueError(f"freezing {part!r}: no weight's name begins like that. There are {', '.join(tops)}.")
            for leaf in found:
                leaf.requires_grad_(False)
        for name, (leaf, _) in self.model.fused.places.items():
            self.model.module.get_parameter(name).requires_grad_(self.model.leaves[leaf].requires_grad)

    def expect_same_frozen(self) -> None:
        """Refuse a module in which other weights are frozen than here: they would be trained all the same."""
        frozen = [
            name
            for name, (leaf, _) in self.model.fused.places.items()
            if self.model.module.get_parameter(name).requires_grad != self.model.leaves[leaf].requires_grad
        ]
        if frozen:
            raise RuntimeError(
                f"updating: requires_grad of {len(frozen)} of the module's parameters was changed, first of {frozen[0]!r}, "
                "and what is trained are the policy's own weights, of which those are parts. "
                "Use policy.freeze(...) with the beginnings of names, on a policy whose module was left alone."
            )

    def zero_gradients(self) -> None:
        """Set every gradient to zero, in place."""
        torch._foreach_zero_(list(self.gradients.tensors))

    def move_in(self, memory: Memory | None) -> None:
        """Live in a memory from now on: weights and gradients in regions of it, at addresses that stay."""
        from rollplex.memory.placement import move_gradients, move_weights

        if memory is not self.memory:
            move_weights(self.model, "policy.weights", self.memory, memory)
            move_gradients(self.model, "policy.gradients", self.memory, memory)
            self.memory = memory

    def expect(self, version: int, what: str) -> None:
        """Refuse a value that was made with other weights than the current ones."""
        if version != self.version:
            raise StaleError(
                f"using a {what} of weight version {version}: the policy is at version {self.version}. "
                f"Make a new {what} with the current weights; on-policy training never mixes versions."
            )

    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of the weights by name, for comparing and restoring."""
        return {name: leaf.detach().clone() for name, leaf in self.model.leaves.items()}

    def restore(self, snapshot: Mapping[str, torch.Tensor], version: int) -> None:
        """Put a snapshot's weights back, in place, as the given version; an optimizer goes on from them."""
        with torch.no_grad():
            for name, leaf in self.model.leaves.items():
                leaf.copy_(snapshot[name])
        self.version = version

    def __repr__(self) -> str:
        num = sum(leaf.numel() for leaf in self.model.leaves.values())
        return f"Policy({num:,} parameters, {self.model.dtype}, {self.model.device}, version {self.version})"


class Reference:
    """A frozen copy of a policy as it was when this was made.

    >>> Reference(Policy.tiny()).version
    0
    """

    def __init__(self, policy: Policy) -> None:
        self.version = policy.version
        self.memory: Memory | None = None
        """The device with a budget that it lives in, if any."""
        module = copy.deepcopy(policy.model.module)
        for parameter in module.parameters():
            parameter.grad = None
            parameter.requires_grad_(False)
        self.model = Model.of(module)

    @property
    def weights(self) -> Resource:
        """The distinct weights."""
        return Resource("reference.weights", tuple(self.model.leaves.values()))

    def move_in(self, memory: Memory | None) -> None:
        """Live in a memory from now on: in its pool of host memory, and on the device while a phase reads it."""
        from rollplex.memory.placement import move_weights

        if memory is not self.memory:
            stays = memory is not None and not memory.page_reference
            move_weights(self.model, "reference.weights", self.memory, memory, contents="frozen", stays=stays)
            self.memory = memory

    def __repr__(self) -> str:
        return f"Reference(frozen at version {self.version}, {self.model.dtype}, {self.model.device})"


class StaleError(RuntimeError):
    """A value made with one version of the weights was about to be used with another."""


@contextmanager
def without_progress_bar() -> Generator[None]:
    """No bar of transformers' inside: loading or saving a tiny model is over before anybody could read it."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    if leaf.grad is None:
        raise RuntimeError(
            "reading the policy's gradients: a gradient buffer was set to None from outside "
            "(zero_grad(set_to_none=True) does this). Use policy.zero_gradients()."
        )
    return leaf.grad

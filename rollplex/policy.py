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

    def freeze(self, part: str, *more: str) -> None:
        """Keep the weights of a part, such as the vision tower, as they are from the next step on.

        >>> policy = Policy.tiny()
        >>> policy.freeze("model.visual")
        >>> {name.split(".")[1] for name, leaf in policy.model.leaves.items() if leaf.requires_grad}
        {'language_model'}

        A part is a weight, or all weights below a name. No gradient is made for it, and no optimizer moves it.
        """
        for name in [name for each in (part, *more) for name in self._below(each)]:
            self.model.leaves[name].requires_grad_(False)
        for _, parameter, leaf in self._views():
            parameter.requires_grad_(leaf.requires_grad)

    def expect_module_alike(self) -> None:
        """Refuse a module whose parameters are frozen otherwise than the weights that they are views of."""
        differ = [
            (name, parameter.requires_grad, leaf.requires_grad)
            for name, parameter, leaf in self._views()
            if parameter.requires_grad != leaf.requires_grad
        ]
        if differ:
            name, theirs, ours = differ[0]
            raise RuntimeError(
                f"updating: the module and the policy disagree on what is frozen, in {len(differ)} parameters, first "
                f"{name!r} (requires_grad is {theirs} in the module and {ours} in the policy). The policy's fused weights "
                "are what is trained, so setting one side has no effect. Freeze with policy.freeze(...), which sets both."
            )

    def _below(self, part: str) -> list[str]:
        """Names of weights that are a part or lie below it."""
        names = [name for name in self.model.leaves if name == part or name.startswith(part.rstrip(".") + ".")]
        if not names:
            tops = sorted({".".join(name.split(".")[:2]) for name in self.model.leaves})
            raise ValueError(
                f"freezing {part!r}: no weight has this name or lies below it. Names begin with {', '.join(tops)}; all are "
                "in policy.model.leaves. Projections that read the same input are one weight (q_proj, k_proj and v_proj "
                "are qkv_proj), and a tied head is the embedding."
            )
        return names

    def _views(self) -> Generator[tuple[str, torch.Tensor, torch.Tensor]]:
        """The module's parameters by name, and of which weights each is rows."""
        for name, (leaf, _) in self.model.fused.places.items():
            yield name, self.model.module.get_parameter(name), self.model.leaves[leaf]

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        """A policy of its own memory with the same weights, version and frozen parts."""
        made = Policy(_copied(self.model, memo), self.ingest)
        made.version = self.version
        if frozen := [name for name, leaf in self.model.leaves.items() if not leaf.requires_grad]:
            made.freeze(*frozen)
        return made

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
        self.model = _copied(policy.model, {})

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


def _copied(model: Model, memo: dict[int, Any]) -> Model:
    """A model of its own memory with the same weights, without gradients."""
    module = copy.deepcopy(model.module, memo)
    for parameter in module.parameters():
        parameter.grad = None
        parameter.requires_grad_(False)
    return Model.of(module)


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    if leaf.grad is None:
        raise RuntimeError(
            "reading the policy's gradients: a gradient buffer was set to None from outside "
            "(zero_grad(set_to_none=True) does this). Use policy.zero_gradients()."
        )
    return leaf.grad

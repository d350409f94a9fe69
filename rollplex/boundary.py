"""The boundary between prompt and response: all that a suffix needs of its prefix.

Per text layer the prompt's keys and values, and the last prompt token's final hidden state, which predicts the first
response token of every response. Attached boundaries collect the gradients of all responses and send them through the
prefix once.

Shapes: n prompts of one microbatch, P their longest length, H key/value heads, D head size, d hidden size, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefixOutput:
    """What the text layers leave behind for a microbatch of prompts, attached to autograd or not."""

    keys: tuple[torch.Tensor, ...]
    """L times ``[n, H, P, D]``."""
    values: tuple[torch.Tensor, ...]
    """L times ``[n, H, P, D]``."""
    last_hidden: torch.Tensor
    """``[n, d]``, after the final norm, of each prompt's last token."""

    saved_bytes: int = 0
    """Bytes that its graph keeps alive besides the weights; 0 where there is none."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of it, in one order."""
        return (*self.keys, *self.values, self.last_hidden)


Forward = Callable[[], Generator[str, None, PrefixOutput]]
"""Runs the prefix of a microbatch in ticks."""


@dataclass(eq=False)
class Tape:
    """How the gradient at a boundary gets back into the weights: the saved graph, or the prefix once more."""

    forward: Forward
    """Runs the same prefix again, attached."""
    outputs: Sequence[torch.Tensor] | None = None
    """The attached outputs; None once used, or where the graph was dropped for recomputation."""
    nbytes: int = 0
    """Bytes that the graph keeps alive besides the weights; 0 once used."""

    def backward(self, gradients: Sequence[torch.Tensor]) -> Generator[str, None, None]:
        """Add the boundary's gradient to the weights' gradients.

        The saved graph serves once. A second call (a suffix that is run again in a notebook) runs the prefix again.
        """
        outputs, self.outputs, self.nbytes = self.outputs, None, 0
        if outputs is None:
            outputs = (yield from self.forward()).tensors
        pairs = [(o, g.to(o.dtype)) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        yield "prefix backward"


@dataclass(frozen=True, kw_only=True, eq=False)
class Boundary:
    """The boundary of one microbatch of prompts."""

    prompts: tuple[int, ...]
    """Indices of the prompts in their batch."""
    lengths: torch.Tensor
    """``[n]`` int64, real tokens of each prompt; keys and values past them are padding."""
    next_positions: torch.Tensor
    """``[n]`` int64, position of each prompt's first response token."""
    output: PrefixOutput
    """Detached keys, values and last hidden states."""
    tape: Tape | None
    """Way back into the prefix; None for a frozen model."""
    gradients: tuple[torch.Tensor, ...] = field(default=())
    """Accumulators in the order of ``output.tensors``, float32 or wider; empty for a frozen model."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and last hidden states."""
        return sum(t.nbytes for t in self.output.tensors)

    def take(self, index: torch.Tensor) -> PrefixOutput:
        """Rows ``index`` (a response's prompt within the microbatch); their gradients flow into the accumulators."""
        if not self.gradients:
            return _select(self.output, index)
        taken = [_Take.apply(t, index, g) for t, g in zip(self.output.tensors, self.gradients, strict=True)]
        num = len(self.output.keys)
        return PrefixOutput(keys=tuple(taken[:num]), values=tuple(taken[num : 2 * num]), last_hidden=taken[-1])

    def zero_gradients(self) -> None:
        """Forget what earlier suffix passes sent."""
        for gradient in self.gradients:
            gradient.zero_()


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefixState:
    """Boundaries of all prompts of a step."""

    boundaries: tuple[Boundary, ...]
    """One a microbatch."""
    version: int
    """Version of the weights that made it."""
    step: int
    """Index of the training step."""

    @property
    def nbytes(self) -> int:
        """Bytes of the boundaries; graphs kept for the backward pass are not counted."""
        return sum(boundary.nbytes for boundary in self.boundaries)

    def memory(self, field: str) -> dict[str, int]:
        """Bytes by owner, for the trace: boundary keys and values, their gradient sums, and the saved graph."""
        parts = {
            f"{field}.boundary": self.nbytes,
            f"{field}.gradients": sum(g.nbytes for b in self.boundaries for g in b.gradients),
            f"{field}.tape": sum(b.tape.nbytes for b in self.boundaries if b.tape is not None),
        }
        return {name: num for name, num in parts.items() if num}

    def __repr__(self) -> str:
        num = sum(len(boundary.prompts) for boundary in self.boundaries)
        return f"PrefixState({num} prompts, version {self.version}, {self.nbytes:,} bytes of boundary)"


def _select(output: PrefixOutput, index: torch.Tensor) -> PrefixOutput:
    return PrefixOutput(
        keys=tuple(t[index] for t in output.keys),
        values=tuple(t[index] for t in output.values),
        last_hidden=output.last_hidden[index],
    )


class _Take(torch.autograd.Function):
    """``tensor[index]`` whose backward adds into an accumulator instead of making a dense gradient each time.

    The responses of a group all read one prompt, so their gradients are summed in the accumulator's (wider) type.
    """

    @staticmethod
    def forward(ctx, tensor, index, accumulator):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.save_for_backward(index)
        ctx.accumulator = accumulator
        return tensor[index]

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        (index,) = ctx.saved_tensors
        ctx.accumulator.index_add_(0, index, gradient.to(ctx.accumulator.dtype))
        return None, None, None

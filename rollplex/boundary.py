"""The boundary between prompt and response: all that a suffix needs of its prefix.

Per text layer the prompt's keys and values, and the last prompt token's final hidden state, which predicts the first
response token of every response. Attached boundaries collect the gradients of all responses and send them through the
prefix once.

Shapes: n prompts of one microbatch, P their longest length, H key/value heads, D head size, d hidden size, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

import torch

from rollplex.memory.arena import Arena
from rollplex.memory.charge import Charge
from rollplex.model.attention import PromptKeys, Take
from rollplex.model.rectangle import Rectangle
from rollplex.prompts import PromptBatch


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


LOGPROBS = "prefix.logprobs"
"""Name in ledgers of what a prefix gives of the log-probabilities, whichever model's."""

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
    padded: bool
    """Whether the prompts differ in length, so that some keys are padding."""
    output: PrefixOutput
    """Detached keys, values and last hidden states."""
    tape: Tape | None
    """Way back into the prefix; None for a frozen model."""
    gradients: tuple[torch.Tensor, ...] = field(default=())
    """Accumulators in the order of ``output.tensors``, float32 or wider; empty for a frozen model."""
    charges: tuple[Charge, ...] = ()
    """What it counts against a device's budget, for as long as it lives."""

    def charged(self, arena: Arena, owner: str, logprobs_owner: str) -> Boundary:
        """Itself, counted by an arena together with its accumulators; last hidden states may be another owner's."""
        rest = self.nbytes + sum(gradient.nbytes for gradient in self.gradients) - self.logprobs_bytes
        return replace(self, charges=(arena.charge(owner, rest), arena.charge(logprobs_owner, self.logprobs_bytes)))

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and last hidden states."""
        return sum(t.nbytes for t in self.output.tensors)

    @property
    def logprobs_bytes(self) -> int:
        """Bytes of the last hidden states, of which first log-probabilities are made, with their accumulator."""
        return self.output.last_hidden.nbytes + sum(sums.nbytes for sums in self.gradients[-1:])

    def last_hidden(self, index: torch.Tensor) -> torch.Tensor:
        """Rows ``index [B]`` (each response's prompt) of the last hidden states; gradients go to the accumulators."""
        tensor = self.output.last_hidden
        taken: torch.Tensor = Take.apply(tensor, index, self.gradients[-1]) if self.gradients else tensor[index]
        return taken

    def bias(self, rectangle: Rectangle) -> torch.Tensor:
        """``[n, 1, 1, P]`` for the prompts that have rows: 0 on real tokens, -inf on padding."""
        keys = self.output.keys[0]
        padding = torch.arange(keys.shape[2], device=keys.device) >= rectangle.chosen(self.lengths)[:, None]
        zeros = torch.zeros(padding.shape, dtype=keys.dtype, device=keys.device)
        return zeros.masked_fill(padding, float("-inf"))[:, None, None]

    def prompt_keys(self, index: torch.Tensor, counts: Sequence[int]) -> list[PromptKeys]:
        """Each layer's keys and values as rows ``index [B]``, ordered by prompt with ``counts`` a prompt, see them."""
        output, num = self.output, len(self.output.keys)
        rectangle = Rectangle.of(counts, device=index.device)
        bias = self.bias(rectangle) if self.padded else None
        return [
            PromptKeys(
                keys=output.keys[layer],
                values=output.values[layer],
                bias=bias,
                rectangle=rectangle,
                index=index,
                gradients=(self.gradients[layer], self.gradients[num + layer]) if self.gradients else None,
            )
            for layer in range(num)
        ]

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
    prompts: PromptBatch
    """The prompts it is the prefix of."""

    @property
    def step(self) -> int:
        """Index of the training step."""
        return self.prompts.step

    def spent(self) -> PrefixState:
        """What is left of it once its suffix has used it and its memory is wanted: where it came from."""
        return replace(self, boundaries=())

    def expect(self, prompts: PromptBatch) -> None:
        """Refuse to be used with responses to other prompts, or once its boundaries were freed."""
        if not self.boundaries:
            raise ValueError(
                "using a prefix: its boundaries were freed after their suffix, as the run's memory demands. Run the "
                "Prefix phase again."
            )
        if self.prompts is not prompts:
            raise ValueError(
                f"using a prefix: it was made of {self.prompts}, and the responses are to {prompts}, another batch. "
                "Run the Prefix phase on the batch that was decoded."
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the boundaries; graphs kept for the backward pass are not counted."""
        return sum(boundary.nbytes for boundary in self.boundaries)

    def memory(self, field: str) -> dict[str, int]:
        """Bytes by owner, for the trace: boundary keys and values, their gradient sums, what the first log-probabilities
        are made of, and the saved graph.

        What an arena counts is left to it.
        """
        uncounted = [boundary for boundary in self.boundaries if not boundary.charges]
        parts = {
            f"{field}.boundary": sum(b.nbytes - b.output.last_hidden.nbytes for b in uncounted),
            f"{field}.gradients": sum(g.nbytes for b in uncounted for g in b.gradients[:-1]),
            f"{field}.logprobs": sum(boundary.logprobs_bytes for boundary in uncounted),
            f"{field}.tape": sum(b.tape.nbytes for b in self.boundaries if b.tape is not None),
        }
        return {name: num for name, num in parts.items() if num}

    def __repr__(self) -> str:
        num = sum(len(boundary.prompts) for boundary in self.boundaries)
        return f"PrefixState({num} prompts, version {self.version}, {self.nbytes:,} bytes of boundary)"

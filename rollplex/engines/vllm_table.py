"""What is drawn for one batch of prompts by an engine that computes logits: our distribution, our random numbers.

The same `Sampling`, and the same number for position t of a sample, as in the built-in engine: so both draw the same
tokens, and a log-probability means the same in both. It does not know which engine asks, or when.

Shapes: N prompts, G responses to each, T longest response, B responses asked about, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch

from rollplex.engines.engine import Request
from rollplex.ingest import Ingest
from rollplex.prompts import PromptBatch
from rollplex.sampling import Sampling, uniforms
from rollplex.step import Rollout, RolloutGroup


@dataclass(eq=False)
class Table:
    """Everything drawn so far; a row is a response, in (prompt, sample) order."""

    sampling: Sampling
    """The distribution."""
    numbers: torch.Tensor
    """``[N G, T]`` float64 uniform numbers to draw with, or int64 tokens that are given."""
    limits: torch.Tensor
    """``[N G]`` int64, most tokens of each response."""
    eos: tuple[int, ...]
    """Ids that end a response; none where lengths are given."""
    size: int
    """G."""

    def __post_init__(self) -> None:
        self.tokens = torch.zeros(self.numbers.shape, dtype=torch.int64)
        self.logprobs = torch.zeros(self.numbers.shape)
        self.lengths = torch.zeros(len(self.numbers), dtype=torch.int64)

    @classmethod
    def of(cls, request: Request, eos: tuple[int, ...]) -> Table:
        """A table whose tokens are drawn."""
        batch, size = request.prompts, request.group
        rows = [
            uniforms(seed=batch.seed, step=batch.step, prompt=prompt, sample=j, num=request.max_new_tokens)
            for prompt in range(len(batch))
            for j in range(size)
        ]
        numbers = torch.from_numpy(numpy.stack(rows))
        if request.lengths is not None:
            return cls(request.sampling, numbers, request.lengths.flatten(), (), size)
        return cls(request.sampling, numbers, torch.full((len(rows),), request.max_new_tokens), eos, size)

    @classmethod
    def given(cls, rollout: Rollout) -> Table:
        """A table whose tokens are those of a rollout."""
        longest = max(int(group.lengths.max()) for group in rollout.groups)
        rows = [
            torch.nn.functional.pad(g.tokens[:, :longest], (0, longest - g.tokens.shape[1])) for g in rollout.groups
        ]
        limits = torch.cat([group.lengths for group in rollout.groups])
        return cls(rollout.sampling, torch.cat(rows), limits, (), rollout.groups[0].size)

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Tokens ``[B]`` for logits ``[B, V]``: row ``rows[i]`` of the table at position ``places[i]``.

        >>> table = Table(Sampling(), torch.tensor([[0.1, 0.9]], dtype=torch.float64), torch.tensor([2]), (), 1)
        >>> table.draw(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([1])), table.logprobs.exp()
        (tensor([1]), tensor([[1.0000, 0.5000]]))
        """
        distribution = self.sampling.logprobs(logits.float())
        numbers = self.numbers[rows, places].to(logits.device)
        drawn = self.sampling.draw(distribution, numbers) if numbers.is_floating_point() else numbers
        self.tokens[rows, places] = drawn.cpu()
        self.logprobs[rows, places] = distribution.gather(-1, drawn[:, None])[:, 0].cpu()
        return drawn

    def rows(self, prompt: int) -> range:
        """Its responses."""
        return range(prompt * self.size, (prompt + 1) * self.size)

    def end(self, row: int, tokens: Sequence[int]) -> bool:
        """Note that a response is complete, with the tokens that the engine says it has; whether its whole group is.

        Refuses other tokens than were drawn.
        """
        num = len(tokens)
        if self.tokens[row, :num].tolist() != list(tokens):
            raise RuntimeError(
                f"ending response {row}: the engine returned tokens {list(tokens)[:8]}, and {self.tokens[row, :8].tolist()} "
                "were drawn. This version of the engine samples by itself: see docs/vllm.md."
            )
        self.lengths[row] = num
        return all(self.lengths[sibling] for sibling in self.rows(row // self.size))

    def open_rows(self) -> list[int]:
        """Responses that are not complete."""
        return (self.lengths == 0).nonzero()[:, 0].tolist()

    def group(self, prompt: int, ingest: Ingest, version: int) -> RolloutGroup:
        """The responses to one prompt, complete."""
        rows = slice(prompt * self.size, (prompt + 1) * self.size)
        lengths = self.lengths[rows].clone()
        tokens = self.tokens[rows, : int(lengths.max())].clone()
        last = tokens.gather(1, lengths[:, None] - 1)[:, 0]
        return RolloutGroup(
            prompt=prompt,
            tokens=tokens,
            lengths=lengths,
            logprobs=self.logprobs[rows, : tokens.shape[1]].clone(),
            finished=torch.isin(last, torch.tensor(self.eos, dtype=torch.int64)),
            texts=tuple(ingest.decode(line[:num]) for line, num in zip(tokens, lengths, strict=True)),
            version=version,
            sampling=self.sampling,
        )

    def refuse_longer(self, batch: PromptBatch, max_length: int) -> None:
        """Refuse prompts that leave no room for their responses."""
        for index, prompt in enumerate(batch):
            response = max(int(self.limits[row]) for row in self.rows(index))
            if prompt.length + response > max_length:
                raise ValueError(
                    f"decoding prompt {index}: its {prompt.length} tokens and up to {response} of a response are more than "
                    f"max_length={max_length}. Make the engine with a larger max_length, or ask for shorter responses."
                )


@dataclass(eq=False)
class Batch:
    """Which rows of a table an engine computes logits for now, index by index."""

    table: Table | None = None
    """What is served; None: logits pass through."""

    def __post_init__(self) -> None:
        self._rows: dict[int, tuple[int, Sequence[int]]] = {}

    def remove(self, index: int) -> None:
        """An index is free."""
        self._rows.pop(index, None)

    def add(self, index: int, row: int, tokens: Sequence[int]) -> None:
        """An index serves a row; ``tokens`` is the engine's own growing list of its output."""
        self._rows[index] = (row, tokens)

    def move(self, source: int, target: int, *, swap: bool) -> None:
        """What was at one index is now at another."""
        there, here = self._rows.pop(target, None), self._rows.pop(source, None)
        if here is not None:
            self._rows[target] = here
        if swap and there is not None:
            self._rows[source] = there

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Draw a token for every row of ``logits [B, V]``; logits that leave the engine no other choice.

        A row whose prompt is still being read draws too; the engine drops that token, and the place is drawn again.
        """
        if self.table is None:
            return logits
        served = [self._rows[index] for index in range(len(logits))]
        rows = torch.tensor([row for row, _ in served])
        places = torch.tensor([len(tokens) for _, tokens in served])
        drawn = self.table.draw(logits, rows, places)
        return torch.full_like(logits, float("-inf")).scatter_(-1, drawn[:, None], 0.0)

"""Rows that share prompts, laid out so that one matrix product lets all of a prompt's rows meet its keys.

Shapes: B rows, n prompts that have rows, W rows of the prompt with the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Rectangle:
    """Rows ``[B, ...]``, ordered by prompt, as a rectangle ``[n, W, ...]``.

    >>> rectangle = Rectangle.of([2, 0, 1], device="cpu")
    >>> rectangle.grouped(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [[1.0, 2.0], [3.0, 0.0]]
    """

    prompts: torch.Tensor | None
    """``[n]`` indices of the prompts that have rows; None for all of them."""
    slots: torch.Tensor | None
    """``[B]`` place of each row in the flattened rectangle; None where the rows fill it."""
    num: int
    """n."""
    width: int
    """W."""

    @classmethod
    def of(cls, counts: Sequence[int], *, device: torch.device | str) -> Rectangle:
        """The rectangle of ``counts[i]`` rows of prompt i."""
        kept = [i for i, count in enumerate(counts) if count]
        width = max(counts)
        slots = [rank * width + j for rank, i in enumerate(kept) for j in range(counts[i])]
        return cls(
            prompts=None if len(kept) == len(counts) else torch.tensor(kept, device=device),
            slots=None if len(slots) == len(kept) * width else torch.tensor(slots, device=device),
            num=len(kept),
            width=width,
        )

    def owners(self) -> torch.Tensor:
        """``[B]`` prompt of each row, on the CPU."""
        ranks = torch.arange(self.num * self.width) if self.slots is None else self.slots.cpu()
        ranks = torch.div(ranks, self.width, rounding_mode="floor")
        return ranks if self.prompts is None else self.prompts.cpu()[ranks]

    def chosen(self, per_prompt: torch.Tensor) -> torch.Tensor:
        """The entries of the prompts that have rows: ``[all prompts, ...] -> [n, ...]``."""
        return per_prompt if self.prompts is None else per_prompt[self.prompts]

    def grouped(self, rows: torch.Tensor) -> torch.Tensor:
        """``[B, ...] -> [n, W, ...]``, zeros where a prompt has fewer rows."""
        if self.slots is not None:
            blank = rows.new_zeros(self.num * self.width, *rows.shape[1:])
            rows = blank.index_copy_(0, self.slots, rows)
        return rows.unflatten(0, (self.num, self.width))

    def rows(self, grouped: torch.Tensor) -> torch.Tensor:
        """``[n, W, ...] -> [B, ...]``."""
        rows = grouped.flatten(0, 1)
        return rows if self.slots is None else rows[self.slots]

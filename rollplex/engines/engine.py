"""What a rollout engine is, and the request it serves."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import torch

from rollplex.boundary import PrefixState
from rollplex.feed import Ready
from rollplex.prompts import PromptBatch
from rollplex.resource import Resource
from rollplex.sampling import Sampling
from rollplex.step import Rollout, RolloutGroup


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """Responses wanted for one batch of prompts."""

    prompts: PromptBatch
    """N prompts."""
    group: int
    """G, responses to each."""
    max_new_tokens: int
    """Longest response."""
    sampling: Sampling
    """The distribution to draw from."""
    lengths: torch.Tensor | None = None
    """``[N, G]`` int64: draw exactly so many tokens, end-of-sequence tokens or not (for benchmarks)."""

    def __post_init__(self) -> None:
        if self.group < 1 or self.max_new_tokens < 1:
            raise ValueError(
                f"asking for responses: group={self.group}, max_new_tokens={self.max_new_tokens}; both must be >= 1"
            )
        if len(self.prompts) == 0:
            raise ValueError("asking for responses: the batch has no prompts. Were all rows refused?")
        if self.lengths is not None:
            shape, largest = tuple(self.lengths.shape), int(self.lengths.max())
            if shape != (len(self.prompts), self.group) or largest > self.max_new_tokens or self.lengths.min() < 1:
                raise ValueError(
                    f"asking for responses of given lengths: found shape {shape} and lengths up to {largest}; wanted "
                    f"shape {(len(self.prompts), self.group)} and lengths from 1 to {self.max_new_tokens}"
                )


class Engine(Protocol):
    """Samples responses with the policy's weights."""

    @property
    def weights(self) -> Resource:
        """The weights it reads; for a sharing engine the policy's own storages."""
        ...

    @property
    def version(self) -> int:
        """Version of the weights it would sample with now."""
        ...

    @property
    def banned(self) -> tuple[int, ...]:
        """Token ids it never samples."""
        ...

    def held(self) -> dict[str, int]:
        """Bytes that it keeps besides the weights, by owner."""
        ...

    def rollout(
        self, request: Request, handoff: PrefixState | None = None
    ) -> Generator[str | Ready[RolloutGroup], None, Rollout]:
        """Serve a request in ticks, each group announced as it completes.

        With ``handoff``, the prompt part is the policy's own boundary and no prefill is run.
        """
        ...

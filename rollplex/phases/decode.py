"""Decode: G sampled responses to each prompt."""

from __future__ import annotations

from collections.abc import Generator
from typing import final

import torch

from rollplex.boundary import PrefixState
from rollplex.engines.engine import Engine, Request
from rollplex.phases.phase import Phase, Tick
from rollplex.prompts import PromptBatch
from rollplex.resource import Resource
from rollplex.sampling import Sampling
from rollplex.step import Rollout


@final
class Decode(Phase):
    """Sample a group of responses to every prompt with an engine.

    ``rollout = decode(prompts)``; given ``policy_prefix`` too, the engine starts from the actor's boundary and runs no
    prefill of its own.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        group: int = 8,
        max_new_tokens: int = 48,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        lengths: torch.Tensor | None = None,
    ) -> None:
        self.engine = engine
        self.group = group
        self.max_new_tokens = max_new_tokens
        self.sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, banned=engine.banned)
        self.lengths = lengths

    @property
    def name(self) -> str:
        """``decode``."""
        return "decode"

    @property
    def writes(self) -> str:
        """``rollout``."""
        return "rollout"

    @property
    def reads(self) -> tuple[Resource, ...]:
        """The engine's weights."""
        return (self.engine.weights,)

    def held(self) -> dict[str, int]:
        """The engine's own memory."""
        return self.engine.held()

    def run(self, prompts: PromptBatch, policy_prefix: PrefixState | None = None) -> Generator[Tick, None, Rollout]:
        """One tick a token; a group is announced as it completes."""
        request = Request(
            prompts=prompts,
            group=self.group,
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            lengths=self.lengths,
        )
        return (yield from self.engine.rollout(request, policy_prefix))

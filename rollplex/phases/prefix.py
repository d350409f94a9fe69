"""Prefix: the prompt part of a model, which no response can change, so it may run while responses are decoded."""

from __future__ import annotations

from collections.abc import Generator
from typing import final, get_args

from rollplex.boundary import LOGPROBS, PrefixState
from rollplex.memory.memory import Memory
from rollplex.memory.pool import HostPool
from rollplex.model.prefix import TapePolicy, boundaries
from rollplex.phases.phase import Phase, Tick
from rollplex.policy import Policy, Reference
from rollplex.prompts import PromptBatch
from rollplex.resource import Resource
from rollplex.saved import Keeping


@final
class Prefix(Phase):
    """The prompt forward of the training actor (attached to autograd) or of the reference (detached).

    ``tape="keep"`` saves the actor's graph until its suffix; ``"offload"`` moves it to ``pool`` layer by layer and back in
    the backward pass; ``"recompute"`` drops it at once and runs the prefix again in the backward pass; ``"checkpoint"``
    keeps each layer's input and recomputes the layer. Gradients are the same.

    >>> policy = Policy.tiny()
    >>> Prefix(policy).writes, Prefix(Reference(policy)).writes
    ('policy_prefix', 'reference_prefix')
    """

    def __init__(
        self,
        owner: Policy | Reference,
        *,
        tape: TapePolicy = "keep",
        pool: HostPool | None = None,
        microbatch_tokens: int = 8192,
    ) -> None:
        if tape not in get_args(TapePolicy):
            raise ValueError(f"making a Prefix: tape is {tape!r}; it must be one of {get_args(TapePolicy)}")
        self.owner = owner
        self.tape: TapePolicy = tape
        self.pool = pool
        self.microbatch_tokens = microbatch_tokens

    @property
    def name(self) -> str:
        """``prefix(policy)`` or ``prefix(reference)``."""
        return "prefix(policy)" if isinstance(self.owner, Policy) else "prefix(reference)"

    @property
    def writes(self) -> str:
        """``policy_prefix`` or ``reference_prefix``."""
        return "policy_prefix" if isinstance(self.owner, Policy) else "reference_prefix"

    @property
    def reads(self) -> tuple[Resource, ...]:
        """The owner's weights."""
        return (self.owner.weights,)

    def move_in(self, memory: Memory | None) -> None:
        """The owner's weights, and the policy's gradients."""
        super().move_in(memory)
        self.owner.move_in(memory)

    def run(self, prompts: PromptBatch) -> Generator[Tick, None, PrefixState]:
        """Boundaries of all prompts."""
        version, memory = self.owner.version, self.owner.memory
        made = yield from boundaries(
            self.owner.model,
            prompts,
            attached=isinstance(self.owner, Policy),
            tape=self.tape,
            microbatch_tokens=self.microbatch_tokens,
            keeping=self._keeping(),
            arena=None if memory is None else memory.arena,
            owner="policy.boundary" if isinstance(self.owner, Policy) else "reference.boundary",
            logprobs_owner=LOGPROBS,
        )
        return PrefixState(boundaries=made, version=version, prompts=prompts)

    def _keeping(self) -> Keeping:
        """Where saved tensors wait."""
        memory = self.owner.memory
        arena = None if memory is None else memory.arena
        if self.tape != "offload":
            return Keeping(arena=arena)
        pool = memory.pool if self.pool is None and memory is not None else self.pool
        if pool is None:
            raise ValueError(
                "running a Prefix with tape='offload': there is no host memory to move saved tensors to. Give it a pool, "
                "Prefix(policy, tape='offload', pool=HostPool(nbytes)), or the run a memory, Run(..., memory=...)."
            )
        return Keeping(arena=arena, pool=pool)

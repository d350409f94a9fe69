"""Prefix: the prompt part of a model, which no response can change, so it may run while responses are decoded."""

from __future__ import annotations

from collections.abc import Generator
from typing import final, get_args

from rollplex.boundary import PrefixState
from rollplex.model.prefix import TapePolicy, boundaries
from rollplex.phases.phase import Phase, Tick
from rollplex.policy import Policy, Reference
from rollplex.prompts import PromptBatch
from rollplex.resource import Resource


@final
class Prefix(Phase):
    """The prompt forward of the training actor (attached to autograd) or of the reference (detached).

    ``tape="keep"`` saves the actor's graph until its suffix; ``"recompute"`` drops it at once and runs the prefix again
    in the backward pass; ``"checkpoint"`` keeps each layer's input and recomputes the layer. Gradients are the same.

    >>> policy = Policy.tiny()
    >>> Prefix(policy).writes, Prefix(Reference(policy)).writes
    ('policy_prefix', 'reference_prefix')
    """

    def __init__(
        self,
        owner: Policy | Reference,
        *,
        tape: TapePolicy = "keep",
        microbatch_tokens: int = 8192,
    ) -> None:
        if tape not in get_args(TapePolicy):
            raise ValueError(f"making a Prefix: tape is {tape!r}; it must be one of {get_args(TapePolicy)}")
        self.owner = owner
        self.tape: TapePolicy = tape
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

    def run(self, prompts: PromptBatch) -> Generator[Tick, None, PrefixState]:
        """Boundaries of all prompts."""
        version = self.owner.version
        made = yield from boundaries(
            self.owner.model,
            prompts,
            attached=isinstance(self.owner, Policy),
            tape=self.tape,
            microbatch_tokens=self.microbatch_tokens,
        )
        return PrefixState(boundaries=made, version=version, prompts=prompts)

"""Suffix: the response part of both models on the kept boundaries, the loss, and its gradient.

Responses of a microbatch run forward and backward at once; what flows back into a boundary is summed there, and one
backward through each prefix spends the sums. All sums are taken before the loss's denominator is known (with streamed
groups it is known last), so gradients are scaled once, at the end.

Shapes: B responses of a microbatch, R their longest, G responses a prompt.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch

from rollplex.boundary import Boundary, PrefixState
from rollplex.feed import Feed, Waiting
from rollplex.losses import GRPO
from rollplex.memory.activations import prefix_workspace, suffix_workspace
from rollplex.phases.phase import Phase, Tick
from rollplex.policy import Policy, Reference
from rollplex.prompts import PromptBatch
from rollplex.resource import Resource
from rollplex.scoring import Microbatch, Tally, microbatches, score
from rollplex.step import RewardGroup, Rewards, Rollout, RolloutGroup, SuffixStats


@final
class Suffix(Phase):
    """Loss and gradients of the responses, through the boundary into the prefix.

    ``microbatch`` is the number of responses that run together; the result does not depend on it.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Reference | None = None,
        *,
        loss: GRPO | None = None,
        microbatch: int = 32,
        checkpointed: bool = False,
    ) -> None:
        self.loss = GRPO() if loss is None else loss
        if self.loss.needs_reference and reference is None:
            raise ValueError(
                f"making a Suffix: the loss has beta={self.loss.beta}, which needs a reference model, and none was "
                "given. Pass Suffix(policy, Reference(policy), loss=...) or use beta=0."
            )
        if microbatch < 1:
            raise ValueError(f"making a Suffix: microbatch is {microbatch}; it must be at least 1")
        self.policy = policy
        self.reference = reference
        self.microbatch = microbatch
        self.checkpointed = checkpointed

    @property
    def name(self) -> str:
        """``suffix``."""
        return "suffix"

    @property
    def writes(self) -> str:
        """``suffix``."""
        return "suffix"

    @property
    def reads(self) -> tuple[Resource, ...]:
        """Weights of both models."""
        return (self.policy.weights, *(() if self.reference is None else (self.reference.weights,)))

    @property
    def mutates(self) -> tuple[Resource, ...]:
        """The policy's gradients."""
        return (self.policy.gradients,)

    def run(
        self,
        prompts: PromptBatch,
        policy_prefix: PrefixState,
        rollout: Rollout | Feed[RolloutGroup],
        rewards: Rewards | Feed[RewardGroup],
        reference_prefix: PrefixState | None = None,
    ) -> Generator[Tick, None, SuffixStats]:
        """Score groups as they come: all at once from a finished rollout, one by one from a feed."""
        self._check(prompts, policy_prefix, reference_prefix)
        self.policy.zero_gradients()
        for boundary in policy_prefix.boundaries:
            boundary.zero_gradients()
        tally = Tally(self.loss, len(prompts))
        pending: list[tuple[RolloutGroup, RewardGroup]] = []
        groups: dict[int, RolloutGroup] = {}
        arrivals = rollout.parts()
        for reward in rewards.parts():
            if isinstance(reward, Waiting):
                if pending and not self.loss.needs_all_rewards:
                    yield from self._score(policy_prefix, reference_prefix, pending, tally)
                else:
                    yield reward
                continue
            while reward.prompt not in groups:
                group = next(arrivals)
                assert not isinstance(group, Waiting), "a group is scored only after it is complete"
                self.policy.expect(group.version, "rollout")
                groups[group.prompt] = group
            pending.append((groups[reward.prompt], reward))
        yield from self._score(policy_prefix, reference_prefix, pending, tally)
        tally.scale(self.policy)
        yield "scale"
        return tally.stats(self.policy.version, prompts.step)

    def _check(self, prompts: PromptBatch, policy_prefix: PrefixState, reference_prefix: PrefixState | None) -> None:
        self.policy.expect(policy_prefix.version, "prefix")
        policy_prefix.expect(prompts)
        if reference_prefix is not None:
            reference_prefix.expect(prompts)
        if self.loss.needs_reference and reference_prefix is None:
            raise ValueError(
                f"running the suffix: the loss has beta={self.loss.beta} and there is no reference_prefix. "
                "Add rx.Prefix(reference) to the phases."
            )

    def _score(
        self,
        policy_prefix: PrefixState,
        reference_prefix: PrefixState | None,
        pending: list[tuple[RolloutGroup, RewardGroup]],
        tally: Tally,
    ) -> Generator[Tick, None, None]:
        """Forward and backward of the groups that have arrived; prefixes whose groups are all done go backward too."""
        arrived = {group.prompt: group for group, _ in pending}
        tally.admit(pending)
        pending.clear()
        for index, boundary in enumerate(policy_prefix.boundaries):
            groups = [arrived[p] for p in boundary.prompts if p in arrived]
            if not groups:
                continue
            twin = None if reference_prefix is None else _twin(reference_prefix, boundary, index)
            for batch in microbatches(boundary, groups, tally, self.microbatch, self.policy.model.device):
                self._backward(boundary, twin, batch, tally)
                yield f"{len(batch.lengths)} responses"
            if boundary.tape is not None and tally.complete(boundary):
                with self._reserved(prefix_workspace(self.policy.model)):
                    yield from boundary.tape.backward(boundary.gradients)

    def _backward(self, boundary: Boundary, twin: Boundary | None, batch: Microbatch, tally: Tally) -> None:
        """One microbatch: reference scores, policy scores, loss terms, gradients."""
        reference = None
        if twin is not None and self.reference is not None:
            with torch.no_grad():
                reference, _ = score(self.reference.model, twin, batch)
        with self._reserved(suffix_workspace(self.policy.model, *batch.tokens.shape)):
            logprobs, entropy = score(self.policy.model, boundary, batch, checkpointed=self.checkpointed)
            terms = self.loss.terms(logprobs, batch.engine_logprobs, reference, batch.advantages, batch.lengths)
            total = self.loss.partial_sum(terms.total, batch.lengths)
            total.backward()
        tally.add(batch, terms, logprobs.detach(), entropy)

    def _reserved(self, nbytes: int) -> AbstractContextManager[None]:
        """Room for a backward pass, where there is a budget."""
        return nullcontext() if self.memory is None else self.memory.reserved("suffix.workspace", nbytes)


def _twin(state: PrefixState, boundary: Boundary, index: int) -> Boundary:
    """The reference's boundary of the same prompts."""
    twin = state.boundaries[index] if index < len(state.boundaries) else None
    if twin is None or twin.prompts != boundary.prompts:
        raise ValueError(
            "running the suffix: the reference prefix has other microbatches than the policy prefix. "
            "Give both Prefix phases the same microbatch_tokens."
        )
    return twin

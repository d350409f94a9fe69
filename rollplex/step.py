"""The values of one training step, in the order in which phases fill them in.

Every value is frozen and says where it came from (weight version, seed, step). Nothing here computes.

Shapes: N prompts, G responses in a group, R the longest response of the group, P prompt tokens,
L text layers, H key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rollplex.boundary import PrefixState
    from rollplex.prompts import PromptBatch
    from rollplex.sampling import Sampling


@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutGroup:
    """The G responses to one prompt, complete."""

    prompt: int
    """Index of the prompt in its batch."""
    tokens: torch.Tensor
    """``[G, R]`` int64 on the CPU; past a response's length the content is undefined, use ``lengths``."""
    lengths: torch.Tensor
    """``[G]`` int64, sampled tokens of each response, the end-of-sequence token included."""
    logprobs: torch.Tensor
    """``[G, R]`` float, log-probability of each sampled token under the distribution it was drawn from."""
    finished: torch.Tensor
    """``[G]`` bool, whether the response ended with an end-of-sequence token (else it was cut)."""
    texts: tuple[str, ...]
    """The responses as text, special tokens left out."""
    version: int
    """Version of the weights that sampled."""
    sampling: Sampling
    """The distribution that was sampled from."""

    @property
    def size(self) -> int:
        """G, the number of responses."""
        return len(self.texts)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return self.tokens.nbytes + self.lengths.nbytes + self.logprobs.nbytes + self.finished.nbytes

    def __repr__(self) -> str:
        ended = f"{int(self.finished.sum())} of {self.size} responses ended"
        return (
            f"RolloutGroup(prompt {self.prompt}: {ended}, {int(self.lengths.sum()):,} tokens, version {self.version})"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """Responses of every prompt of the batch, drawn from one weight version."""

    groups: tuple[RolloutGroup, ...]
    """One group a prompt, in prompt order."""
    version: int
    """Version of the weights that sampled; a consumer at another version refuses it."""
    step: int
    """Index of the training step."""
    seed: int
    """Seed from which every sample's own generator was made."""
    sampling: Sampling
    """The distribution that was sampled from; the trainer scores under the same one."""

    def parts(self) -> Iterator[RolloutGroup]:
        """The groups one by one; `Feed.parts` has the same form while decoding goes on."""
        return iter(self.groups)

    def memory(self, field: str) -> dict[str, int]:
        """Bytes by owner, for the trace."""
        return {field: self.nbytes}

    @property
    def num_tokens(self) -> int:
        """Sampled tokens in all."""
        return int(sum(group.lengths.sum() for group in self.groups))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(group.nbytes for group in self.groups)

    def __repr__(self) -> str:
        num = sum(group.size for group in self.groups)
        return f"Rollout({num} responses to {len(self.groups)} prompts, {self.num_tokens:,} tokens, version {self.version})"


@dataclass(frozen=True, kw_only=True, eq=False)
class RewardGroup:
    """Scores of one group."""

    prompt: int
    """Index of the prompt in its batch."""
    values: torch.Tensor
    """``[G]`` float64, the weighted sum over the functions that apply; NaN where none applied."""
    by_function: Mapping[str, torch.Tensor]
    """Name of a reward function -> its own ``[G]`` scores, NaN where it returned None."""

    def mean(self) -> float:
        """Mean over the scored responses; NaN if none was scored."""
        return float(self.values.nanmean())

    def __repr__(self) -> str:
        names = ", ".join(self.by_function)
        return (
            f"RewardGroup(prompt {self.prompt}: mean {self.mean():.3g} over {len(self.values)} responses, by {names})"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Rewards:
    """Scores of every response of the batch."""

    groups: tuple[RewardGroup, ...]
    """One group a prompt, in prompt order."""
    step: int
    """Index of the training step."""

    def parts(self) -> Iterator[RewardGroup]:
        """The groups one by one; `Feed.parts` has the same form while scoring goes on."""
        return iter(self.groups)

    def values(self) -> torch.Tensor:
        """``[N, G]`` float64 scores; NaN where no function applied."""
        return torch.stack([group.values for group in self.groups])

    def mean(self) -> float:
        """Mean over the scored responses; NaN if none was scored."""
        return float(self.values().nanmean())

    def __repr__(self) -> str:
        mean = f"mean {self.mean():.3g} over " if self.groups else ""
        return f"Rewards({mean}{len(self.groups)} groups, step {self.step})"


@dataclass(frozen=True, kw_only=True, eq=False)
class SuffixStats:
    """What the suffix pass saw. The gradients themselves are in the policy's gradient buffers."""

    version: int
    """Version of the weights that the gradients belong to; `Update` refuses any other."""
    step: int
    """Index of the training step."""
    loss: float
    """The loss whose gradient was taken."""
    policy_loss: float
    """Its policy-gradient part."""
    kl: float
    """Mean per-token estimate of KL(policy || reference); 0.0 where no reference is used."""
    entropy: float
    """Mean per-token entropy of the policy at the sampling temperature, in nats."""
    clip_ratio: float
    """Share of tokens at which the importance ratio was clipped."""
    advantages: tuple[torch.Tensor, ...]
    """One ``[G]`` tensor a prompt; 0 for responses without a score."""
    logprobs: tuple[torch.Tensor, ...]
    """One ``[G, R]`` tensor a prompt: the trainer's log-probabilities of the sampled tokens, detached."""
    mismatch_mean: float
    """Mean absolute difference of engine and trainer probabilities of the sampled tokens."""
    mismatch_max: float
    """The largest such difference."""
    num_tokens: int
    """Response tokens in the loss."""
    groups_without_signal: int
    """Groups whose scored responses all got the same reward (or none): they teach nothing."""

    def __repr__(self) -> str:
        silent = f"{self.groups_without_signal} of {len(self.advantages)} groups without signal"
        return (
            f"SuffixStats(loss {self.loss:.4g}, kl {self.kl:.3g}, entropy {self.entropy:.3g}, "
            f"{self.num_tokens:,} tokens, {silent}, version {self.version})"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class UpdateStats:
    """What the optimizer did."""

    version: int
    """Version of the weights after the update."""
    step: int
    """Index of the training step."""
    grad_norm: float
    """Global 2-norm of the gradient before clipping."""
    learning_rate: float
    """Learning rate of this update."""
    clipped: bool
    """Whether the gradient was scaled down to the norm limit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One on-policy training step; phases fill its fields, each exactly once.

    A phase's ``run`` names the fields that it reads as parameters, and ``Phase.writes`` the one it fills.
    """

    index: int
    """Number of the step, from 0."""
    seed: int
    """Seed of the whole run; every phase derives its own generators from it."""
    version: int
    """Version of the policy's weights when the step began."""
    prompts: PromptBatch
    """The prompts."""
    policy_prefix: PrefixState | None = None
    """Prompt part of the training actor: boundary attached to autograd."""
    reference_prefix: PrefixState | None = None
    """Prompt part of the reference model: boundary detached."""
    rollout: Rollout | None = None
    """Sampled responses."""
    rewards: Rewards | None = None
    """Their scores."""
    suffix: SuffixStats | None = None
    """Loss and gradients of the response part."""
    update: UpdateStats | None = None
    """The optimizer's report."""

    def fill(self, name: str, value: Any) -> Step:
        """This step with one more field filled; refuses to fill a field twice."""
        if getattr(self, name) is not None:
            raise ValueError(
                f"step {self.index}: filling {name!r}, but it is already filled. Each phase runs once a step."
            )
        return replace(self, **{name: value})

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Names that a phase may read or write."""
        return tuple(f.name for f in fields(cls))

    @property
    def filled(self) -> tuple[str, ...]:
        """Names of the fields that have a value."""
        return tuple(name for name in self.field_names() if getattr(self, name) is not None)

    def __repr__(self) -> str:
        return f"Step({self.index}, version {self.version}, filled: {', '.join(self.filled[3:])})"

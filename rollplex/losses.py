"""Policy-gradient losses, in parts that can be summed group by group before the whole batch is known.

    L = 1/D * sum over sequences of w * sum over tokens of (policy + beta * KL)

The token terms and the weights w need only their own sequence; D, which needs them all, divides once at the end.
This file knows that arithmetic. It does not know models, microbatches or schedules.

Where it differs from TRL: D counts the sequences and tokens that are in the loss (TRL's grpo and dr_grpo also count those
that were masked), over the whole step (TRL normalises bnpo in each microbatch, so here bnpo and dapo aggregate alike).

Shapes: B sequences, R tokens of the longest, G responses in a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from rollplex.advantages import scale_name

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo"]
OldLogprobs = Literal["policy", "rollout"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """Terms of the loss, token by token."""

    total: torch.Tensor
    """``[B, R]``, policy + beta * KL: what is summed into the loss."""
    policy: torch.Tensor
    """``[B, R]``, the clipped policy-gradient term."""
    kl: torch.Tensor
    """``[B, R]``, estimate of KL(policy || reference), never negative; 0 without a reference."""
    clipped: torch.Tensor
    """``[B, R]`` bool, whether clipping took the token's gradient away."""


@dataclass(frozen=True, kw_only=True)
class GRPO:
    """Group-relative policy optimisation, with the names and rules of TRL.

    >>> loss = GRPO(beta=0.04)
    >>> loss.needs_reference, loss.denominator(num_sequences=8, num_tokens=100)
    (True, 8.0)
    """

    beta: float = 0.0
    """Weight of the KL term; 0 needs no reference model."""
    epsilon: float = 0.2
    """The importance ratio counts down to 1 - epsilon."""
    epsilon_high: float | None = None
    """The importance ratio counts up to 1 + epsilon_high; as epsilon unless given."""
    loss_type: LossType = "grpo"
    """How token terms are averaged: per sequence (grpo), over tokens (bnpo, dapo), or by a constant (dr_grpo)."""
    scale_rewards: Literal["group", "batch", "none"] | bool = "group"
    """What advantages are divided by; see `advantages`. True and False are kept as ``"group"`` and ``"none"``."""
    mask_truncated: bool = False
    """Leave out responses that were cut before their end."""
    max_completion_length: int | None = None
    """The constant that dr_grpo divides by; no other type uses it."""
    old_logprobs: OldLogprobs = "policy"
    """The ratio's denominator: the policy itself, as on-policy training has it (ratio 1), or the engine's log-probs."""

    def __post_init__(self) -> None:
        _number("beta", self.beta, at_least=0.0)
        _number("epsilon", self.epsilon, at_least=0.0, below=1.0)
        if self.epsilon_high is not None:
            _number("epsilon_high", self.epsilon_high, at_least=0.0)
        _one_of("loss_type", self.loss_type, get_args(LossType))
        _one_of("old_logprobs", self.old_logprobs, get_args(OldLogprobs))
        if not isinstance(self.mask_truncated, bool):
            raise ValueError(f"mask_truncated={self.mask_truncated!r}: must be True or False")
        object.__setattr__(self, "scale_rewards", scale_name(self.scale_rewards))
        length = self.max_completion_length
        if length is None and self.loss_type == "dr_grpo":
            raise ValueError(
                "max_completion_length=None: loss_type 'dr_grpo' divides by it; give the limit that decode has"
            )
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise ValueError(f"max_completion_length={length!r}: must be an int of at least 1")

    @property
    def needs_reference(self) -> bool:
        """Whether the loss has a KL term, and so needs the reference model's log-probs."""
        return self.beta != 0.0

    @property
    def needs_all_rewards(self) -> bool:
        """Whether a group's advantages depend on the rewards of the others, so that it cannot start before them."""
        return self.scale_rewards == "batch"

    def keeps(self, finished: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
        """``[G]`` bool: responses that are in the loss at all, in its sums and in its denominator alike.

        >>> GRPO(mask_truncated=True).keeps(torch.tensor([True, True, False]), torch.tensor([True, False, True]))
        tensor([ True, False, False])
        """
        return scored & finished if self.mask_truncated else scored.clone()

    def terms(
        self,
        logprobs: torch.Tensor,
        old_logprobs: torch.Tensor | None,
        reference_logprobs: torch.Tensor | None,
        advantages: torch.Tensor,
        lengths: torch.Tensor | None = None,
    ) -> Terms:
        """Token terms ``[B, R]``, of log-probs ``[B, R]`` of the sampled tokens and advantages ``[B]``.

        Given lengths ``[B]``, what stands beyond a sequence's end takes no part, in values or gradients, even if NaN.
        """
        if self.old_logprobs == "rollout" and old_logprobs is None:
            raise ValueError(
                "old_logprobs=None: this loss was made with old_logprobs='rollout'; give the engine's log-probs"
            )
        if self.needs_reference and reference_logprobs is None:
            raise ValueError(f"reference_logprobs=None: beta={self.beta} needs the reference model's log-probs")
        mask = None if lengths is None else token_mask(lengths, logprobs.shape[1])
        if mask is not None:
            logprobs = torch.where(mask, logprobs, 0.0)
            old_logprobs = None if old_logprobs is None else torch.where(mask, old_logprobs, 0.0)
            reference_logprobs = None if reference_logprobs is None else torch.where(mask, reference_logprobs, 0.0)
        weight = advantages.to(logprobs.dtype).unsqueeze(1)
        if self.old_logprobs == "policy" or old_logprobs is None:
            old_logprobs = logprobs.detach()
        ratio = torch.exp(logprobs - old_logprobs)
        low, high = 1 - self.epsilon, 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)
        policy = -torch.min(ratio * weight, ratio.clamp(low, high) * weight)
        clipped = ((ratio < low) & (weight < 0)) | ((ratio > high) & (weight > 0))
        if mask is not None:
            policy, clipped = torch.where(mask, policy, 0.0), clipped & mask
        if reference_logprobs is None:
            return Terms(total=policy, policy=policy, kl=torch.zeros_like(policy), clipped=clipped)
        kl = kl_estimate(logprobs, reference_logprobs)
        total = policy + self.beta * kl if self.needs_reference else policy
        return Terms(total=total, policy=policy, kl=kl, clipped=clipped)

    def sequence_weights(self, lengths: torch.Tensor) -> torch.Tensor:
        """``[B]`` weights of the sequences' sums: 1/length for grpo, else 1; 0 for a sequence without tokens.

        >>> GRPO().sequence_weights(torch.tensor([4, 0]))
        tensor([0.2500, 0.0000], dtype=torch.float64)
        """
        has_tokens = (lengths > 0).double()
        return has_tokens / lengths.clamp(min=1) if self.loss_type == "grpo" else has_tokens

    def partial_sum(self, per_token: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The weighted sum of token terms ``[B, R]`` over some sequences: their share of D times the loss.

        >>> GRPO().partial_sum(torch.tensor([[1.0, 3.0], [5.0, float("nan")]]), torch.tensor([2, 1]))
        tensor(7.)
        """
        sums = torch.where(token_mask(lengths, per_token.shape[1]), per_token, 0.0).sum(dim=1)
        return (sums * self.sequence_weights(lengths).to(sums.dtype)).sum()

    def denominator(self, num_sequences: int, num_tokens: int) -> float:
        """D, of the sequences that `keeps` left and their tokens; 1 if there are none, so that the loss is 0, not NaN."""
        if self.loss_type == "dr_grpo":
            return float(max(num_sequences, 1) * (self.max_completion_length or 1))
        return float(max(num_sequences if self.loss_type == "grpo" else num_tokens, 1))


def DrGRPO(  # noqa: N802 - a loss by its name, made like the others
    *,
    max_completion_length: int,
    beta: float = 0.0,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    mask_truncated: bool = False,
    old_logprobs: OldLogprobs = "policy",
) -> GRPO:
    """GRPO without its length and difficulty biases: a constant divisor, advantages not scaled (arXiv 2503.20783).

    >>> DrGRPO(max_completion_length=48).scale_rewards
    'none'
    """
    return GRPO(
        beta=beta,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        loss_type="dr_grpo",
        scale_rewards="none",
        mask_truncated=mask_truncated,
        max_completion_length=max_completion_length,
        old_logprobs=old_logprobs,
    )


def DAPO(  # noqa: N802 - a loss by its name, made like the others
    *,
    beta: float = 0.0,
    epsilon: float = 0.2,
    epsilon_high: float | None = 0.28,
    scale_rewards: Literal["group", "batch", "none"] | bool = "group",
    mask_truncated: bool = False,
    old_logprobs: OldLogprobs = "policy",
) -> GRPO:
    """GRPO averaged over tokens, with a wider upper clip and no KL term (arXiv 2503.14476).

    >>> DAPO().epsilon_high
    0.28
    """
    return GRPO(
        beta=beta,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        loss_type="dapo",
        scale_rewards=scale_rewards,
        mask_truncated=mask_truncated,
        old_logprobs=old_logprobs,
    )


def kl_estimate(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Unbiased, never negative estimate of KL(policy || reference) at each sampled token (Schulman's k3).

    >>> kl_estimate(torch.tensor([-1.0]), torch.tensor([-1.0]))
    tensor([0.])
    """
    difference = reference_logprobs - logprobs
    return torch.exp(difference) - difference - 1


def token_mask(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """``[B, R]`` bool: which positions hold a sampled token. It comes from lengths, never from token values.

    >>> token_mask(torch.tensor([1, 3]), 3).int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)


def _number(name: str, value: object, *, at_least: float, below: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not at_least <= value < below:
        limit = f" and below {below}" if below < math.inf else ""
        raise ValueError(f"{name}={value!r}: must be a finite number of at least {at_least}{limit}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, allowed))}")

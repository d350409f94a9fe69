"""Scoring sampled responses: microbatches of them, their log-probabilities, and the running tally of a step.

Shapes: B responses of a microbatch, R their longest, G responses a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rollplex.advantages import advantages
from rollplex.boundary import Boundary
from rollplex.losses import GRPO, Terms, token_mask
from rollplex.model.model import Model
from rollplex.model.suffix import response_hidden, token_logprobs
from rollplex.policy import Policy
from rollplex.sampling import Sampling
from rollplex.step import RewardGroup, RolloutGroup, SuffixStats


@dataclass(frozen=True, kw_only=True, eq=False)
class Microbatch:
    """Responses that run together, on one boundary."""

    places: tuple[tuple[int, int], ...]
    """(prompt, sample) of each response."""
    index: torch.Tensor
    """``[B]`` each response's prompt within its boundary, ascending."""
    counts: tuple[int, ...]
    """Responses of each of the boundary's prompts."""
    tokens: torch.Tensor
    """``[B, R]`` padded on the right."""
    lengths: torch.Tensor
    """``[B]``."""
    real: torch.Tensor
    """``[T]`` places of the real tokens in ``tokens.flatten()``, so that no device is asked where they are."""
    engine_logprobs: torch.Tensor
    """``[B, R]`` as the engine returned them."""
    advantages: torch.Tensor
    """``[B]``."""
    sampling: Sampling
    """The distribution that was sampled from."""


def microbatches(
    boundary: Boundary, groups: Sequence[RolloutGroup], tally: Tally, size: int, device: torch.device
) -> Iterator[Microbatch]:
    """The kept responses of some groups, of like length together so that padding is small."""
    chosen = [
        (int(group.lengths[j]), group, j)
        for group in groups
        for j in range(group.size)
        if bool(tally.kept[group.prompt][j])
    ]
    chosen.sort(key=lambda item: (item[0], item[1].prompt, item[2]))
    for start in range(0, len(chosen), size):
        part = chosen[start : start + size]
        longest = part[-1][0]
        # Rows of one prompt side by side, so that they can meet its keys together.
        part.sort(key=lambda item: (boundary.prompts.index(item[1].prompt), item[2]))
        owners = [boundary.prompts.index(group.prompt) for _, group, _ in part]

        def padded(rows: list[torch.Tensor], longest: int = longest) -> torch.Tensor:
            return torch.stack([nn.functional.pad(row[:longest], (0, longest - len(row[:longest]))) for row in rows])

        yield Microbatch(
            places=tuple((group.prompt, j) for _, group, j in part),
            index=torch.tensor(owners, device=device),
            counts=tuple(owners.count(i) for i in range(len(boundary.prompts))),
            tokens=padded([group.tokens[j] for _, group, j in part]).to(device),
            lengths=torch.tensor([length for length, _, _ in part], device=device),
            real=torch.tensor(
                [row * longest + t for row, (length, _, _) in enumerate(part) for t in range(length)], device=device
            ),
            engine_logprobs=padded([group.logprobs[j] for _, group, j in part]).to(device),
            advantages=torch.stack([tally.advantages[group.prompt][j] for _, group, j in part]).to(device),
            sampling=part[0][1].sampling,
        )


def score(
    model: Model, boundary: Boundary, batch: Microbatch, *, checkpointed: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy ``[B, R]`` of each sampled token; 0 past a response's end."""
    if batch.sampling.greedy:
        raise ValueError(
            "scoring a rollout drawn at temperature 0: greedy responses have no distribution to take a gradient of. "
            "Decode with temperature > 0 for training."
        )
    index = batch.index
    hidden = response_hidden(
        model,
        boundary.last_hidden(index),
        boundary.prompt_keys(index, batch.counts),
        boundary.next_positions[index],
        batch.tokens,
        checkpointed=checkpointed,
    )
    banned = torch.tensor(batch.sampling.banned, dtype=torch.int64, device=hidden.device)
    flat, entropy = token_logprobs(
        model,
        hidden.flatten(0, 1)[batch.real],
        batch.tokens.flatten()[batch.real],
        temperature=batch.sampling.temperature,
        banned=banned,
    )
    blank = torch.zeros(batch.tokens.numel(), dtype=flat.dtype, device=flat.device)
    shape = batch.tokens.shape
    return blank.index_put((batch.real,), flat).view(shape), blank.index_put((batch.real,), entropy).view(shape)


class Tally:
    """Sums over the responses of a step, and what is decided from all of them."""

    def __init__(self, loss: GRPO, num_prompts: int) -> None:
        self.loss = loss
        self.num_prompts = num_prompts
        self.advantages: dict[int, torch.Tensor] = {}
        self.kept: dict[int, torch.Tensor] = {}
        self.logprobs: dict[int, torch.Tensor] = {}
        self.num_sequences = 0
        self.num_tokens = 0
        self.without_signal = 0
        # Tensors until `stats`: reading one inside a tick would make the host wait for the device.
        self._sums: dict[str, torch.Tensor] = {}
        self._mismatch_max: list[torch.Tensor] = []
        self._scored: list[tuple[Microbatch, torch.Tensor]] = []
        self._filtered = False

    def admit(self, scored: Sequence[tuple[RolloutGroup, RewardGroup]]) -> None:
        """Advantages of groups that have all their rewards, and which of their responses are in the loss."""
        if not scored:
            return
        made = advantages([reward.values for _, reward in scored], self.loss.scale_rewards)
        self.without_signal += made.groups_without_signal
        for (group, _), values, has_score in zip(scored, made.values, made.scored, strict=True):
            kept = self.loss.keeps(group.finished, has_score) & (group.lengths > 0)
            self.advantages[group.prompt] = values
            self.kept[group.prompt] = kept
            self.logprobs[group.prompt] = torch.zeros_like(group.logprobs)
            self.num_sequences += int(kept.sum())
            self.num_tokens += int(group.lengths[kept].sum())
            self._filtered |= group.sampling.filtered

    def complete(self, boundary: Boundary) -> bool:
        """Whether every group of a boundary has been scored."""
        return all(prompt in self.kept for prompt in boundary.prompts)

    def add(self, batch: Microbatch, terms: Terms, logprobs: torch.Tensor, entropy: torch.Tensor) -> None:
        """Count a microbatch in."""
        mask = token_mask(batch.lengths, batch.tokens.shape[1])
        gap = (logprobs.exp() - batch.engine_logprobs.exp()).abs() * mask
        found = {
            "loss": self.loss.partial_sum(terms.total.detach(), batch.lengths),
            "policy": self.loss.partial_sum(terms.policy.detach(), batch.lengths),
            "kl": (terms.kl.detach() * mask).sum(),
            "entropy": entropy.sum(),
            "clipped": terms.clipped.sum(),
            "mismatch": gap.sum(),
        }
        self._sums = {name: value + self._sums[name] if self._sums else value for name, value in found.items()}
        self._mismatch_max.append(gap.max())
        self._scored.append((batch, logprobs))

    @property
    def denominator(self) -> float:
        """What the loss divides its sums by."""
        return self.loss.denominator(self.num_sequences, self.num_tokens)

    def scale(self, policy: Policy) -> None:
        """Turn the gradients of the sums into those of the loss."""
        torch._foreach_mul_(list(policy.gradients.tensors), 1.0 / self.denominator)

    def stats(self, version: int, step: int) -> SuffixStats:
        """The step's figures; means over no token are 0."""
        tokens = max(self.num_tokens, 1)
        sums = {name: float(value) for name, value in self._sums.items()}
        mismatch = max((float(gap) for gap in self._mismatch_max), default=0.0)
        for batch, logprobs in self._scored:
            for (prompt, sample), row, length in zip(batch.places, logprobs.cpu(), batch.lengths.tolist(), strict=True):
                self.logprobs[prompt][sample, :length] = row[:length]
        order = range(self.num_prompts)
        return SuffixStats(
            version=version,
            step=step,
            loss=sums.get("loss", 0.0) / self.denominator,
            policy_loss=sums.get("policy", 0.0) / self.denominator,
            kl=sums.get("kl", 0.0) / tokens,
            entropy=sums.get("entropy", 0.0) / tokens,
            clip_ratio=sums.get("clipped", 0.0) / tokens,
            advantages=tuple(self.advantages[i] for i in order),
            logprobs=tuple(self.logprobs[i] for i in order),
            mismatch_mean=float("nan") if self._filtered else sums.get("mismatch", 0.0) / tokens,
            mismatch_max=float("nan") if self._filtered else mismatch,
            num_tokens=self.num_tokens,
            groups_without_signal=self.without_signal,
        )

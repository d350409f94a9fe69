"""Drawing tokens: the distribution, and randomness that belongs to a sample and nobody else.

Every sample has its own counter-based generator, keyed by (seed, step, prompt, sample). Position t of a sample always
gets the same uniform number, whatever else is in the batch, in whatever order it runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy
import torch


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The distribution that responses are drawn from.

    >>> Sampling(temperature=0.6).greedy
    False
    """

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most probable token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Keep this many most probable tokens; 0 keeps all."""
    banned: tuple[int, ...] = ()
    """Token ids that are impossible (the visual placeholders)."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"describing sampling: temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"describing sampling: top_p is {self.top_p}; it must be in (0, 1], 1 to keep all")
        if self.top_k < 0:
            raise ValueError(f"describing sampling: top_k is {self.top_k}; it must be 0 (keep all) or more")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """Whether top-p or top-k cut the distribution, so that its log-probabilities are not the trainer's."""
        return self.top_p < 1 or self.top_k > 0

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """Log-probabilities ``[B, V]`` of the distribution, for logits ``[B, V]`` in float32 or wider.

        Greedy sampling has none of its own; the unscaled distribution's are returned.
        """
        if self.banned:
            banned = torch.tensor(self.banned, device=logits.device)
            logits = logits.index_fill(-1, banned, float("-inf"))
        if self.temperature not in (0, 1):
            logits = logits / self.temperature
        if self.top_k and self.top_k < logits.shape[-1]:
            kept = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < kept, float("-inf"))
        if self.top_p < 1:
            logits = logits.masked_fill(self._outside_top_p(logits), float("-inf"))
        return torch.log_softmax(logits, dim=-1)

    def draw(self, logprobs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """One token ``[B]`` a row of ``logprobs [B, V]``, by inverting its distribution at ``uniforms [B]``."""
        if self.greedy:
            return logprobs.argmax(-1)
        cumulative = logprobs.exp().cumsum(-1)
        total = cumulative[:, -1:]
        # Strictly below the rounded total, so that the token found always has a probability above zero.
        target = torch.minimum(uniforms.to(total.dtype)[:, None] * total, torch.nextafter(total, total * 0))
        return torch.searchsorted(cumulative, target, right=True)[:, 0]

    def _outside_top_p(self, logits: torch.Tensor) -> torch.Tensor:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        return torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= self.top_p)


def uniforms(*, seed: int, step: int, prompt: int, sample: int, num: int) -> numpy.ndarray:
    """``num`` numbers in [0, 1), float64, that depend on these keys alone.

    >>> a = uniforms(seed=0, step=3, prompt=1, sample=2, num=8)
    >>> bool((a[:4] == uniforms(seed=0, step=3, prompt=1, sample=2, num=4)).all())
    True
    """
    key = hashlib.blake2b(f"{seed}/{step}/{prompt}/{sample}".encode(), digest_size=16).digest()
    return numpy.random.Generator(numpy.random.Philox(key=int.from_bytes(key, "little"))).random(num)

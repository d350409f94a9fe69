"""Whether engine and trainer agree about the probability of what was sampled: the first sign of stale weights.

Both computed it: the engine when it drew a token, the trainer when it scored it. This file knows the thresholds that
verl's users go by. What to do about a difference: `rollplex.diagnosis`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rollplex.step import Step

FINE = 0.005
"""A mean difference below this is rounding: engines batch and order their sums otherwise than trainers."""
FAULT = 0.01
"""A mean difference above this is a fault: other weights, other positions, another temperature."""

Light = Literal["green", "amber", "red"]
"""Fine, worth a look, a fault."""

LEVELS: dict[Light, int] = {"green": 0, "amber": 1, "red": 2}
"""As a number, for logs."""


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Differences of engine and trainer probabilities over the sampled tokens of a step.

    >>> Mismatch(mean=2e-7, max=3e-6).light, Mismatch(mean=0.02, max=0.9).light
    ('green', 'red')
    """

    mean: float
    """Mean absolute difference."""
    max: float
    """The largest."""

    @property
    def light(self) -> Light:
        """Green, amber or red, by the mean; a difference that is no number is a fault."""
        if self.mean < FINE:
            return "green"
        return "amber" if self.mean <= FAULT else "red"

    @property
    def words(self) -> str:
        """In one line."""
        meaning = {"green": "agree", "amber": "differ more than rounding does", "red": "do not agree"}[self.light]
        return (
            f"engine and trainer {meaning}: probabilities differ by {self.mean:.2g} on average, at most {self.max:.2g}"
        )


def mismatch(step: Step) -> Mismatch | None:
    """What a step's suffix saw; None before it ran, and where top-p or top-k make the probabilities incomparable.

    >>> from rollplex.prompts import PromptBatch
    >>> from rollplex.step import Step
    >>> mismatch(Step(index=0, seed=0, version=0, prompts=PromptBatch(prompts=()))) is None
    True
    """
    if step.suffix is None or (step.rollout is not None and step.rollout.sampling.filtered):
        return None
    return Mismatch(mean=step.suffix.mismatch_mean, max=step.suffix.mismatch_max)

"""Why engine and trainer disagree: the control at zero learning rate, which tells stale caches from stale weights.

While nothing is updated, weights on both sides stand still. If the two then agree about prompts that the engine never
saw and not about prompts that it served before, what it keeps of those prompts (prefix keys, encoder outputs) is from
older weights. If they agree about neither, the weights themselves are. It draws and scores; it changes no weight.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from rollplex.engines.engine import Engine
from rollplex.losses import GRPO
from rollplex.mismatch import Mismatch
from rollplex.model.prefix import boundaries
from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.scoring import Tally, microbatches, score
from rollplex.step import RewardGroup, Rollout

Verdict = Literal["agree", "stale caches", "stale weights", "other arithmetic"]
"""What the differences say."""

ADVICE: dict[Verdict, str] = {
    "agree": "With the weights at rest both sides agree. If training steps do not, the engine gets updates late: compare "
    "its version with the policy's before it draws.",
    "stale caches": "Reset the engine's prefix, encoder and multimodal caches after every update.",
    "stale weights": "The engine does not read the trainer's weights: look for a copy, a cast or a replaced parameter "
    "(rx.sharing shows which), and for an update that was not published.",
    "other arithmetic": "They differed before anything was updated: compare temperature, masks, chat template, positions "
    "and types of both sides.",
}
"""What to do about each."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Differences at zero learning rate.

    >>> fine, fault = Mismatch(mean=1e-7, max=1e-6), Mismatch(mean=0.2, max=0.9)
    >>> Diagnosis(served=fault, unseen=fine).verdict, Diagnosis(served=fault, unseen=fault).verdict
    ('stale caches', 'stale weights')
    """

    served: Mismatch
    """On prompts that the engine served before the weights last changed."""
    unseen: Mismatch
    """On prompts that it never had."""
    before: Mismatch | None = None
    """Before the first update, where nothing can be stale; None if that was not measured."""

    @property
    def verdict(self) -> Verdict:
        """What the three say."""
        if self.before is not None and self.before.light != "green":
            return "other arithmetic"
        if self.unseen.light != "green":
            return "stale weights"
        return "agree" if self.served.light == "green" else "stale caches"

    @property
    def advice(self) -> str:
        """What to do."""
        return ADVICE[self.verdict]

    def __str__(self) -> str:
        lines = [f"served before: {self.served.words}", f"never seen: {self.unseen.words}"]
        if self.before is not None:
            lines.insert(0, f"before any update: {self.before.words}")
        return "\n".join([f"{self.verdict}. {self.advice}", *(f"  {line}" for line in lines)])


def diagnose(
    policy: Policy, engine: Engine, *, served: PromptBatch, unseen: PromptBatch, before: Mismatch | None = None
) -> Diagnosis:
    """Probe an engine with the weights at rest: with prompts of earlier steps, and with prompts that it never had.

    ``before`` is a `probe` made before the first update, if there is one.

    >>> policy = Policy.tiny()
    >>> rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("sum ?", "largest ?")]
    >>> batches = [policy.prompts([row]) for row in rows]
    >>> diagnose(policy, policy.engine(), served=batches[0], unseen=batches[1]).verdict
    'agree'
    """
    return Diagnosis(served=probe(policy, engine, served), unseen=probe(policy, engine, unseen), before=before)


def probe(
    policy: Policy, engine: Engine, prompts: PromptBatch, *, group: int = 4, max_new_tokens: int = 16
) -> Mismatch:
    """Draw responses with an engine, score them with the policy, and compare; no gradient, no update."""
    rollout: Rollout = Decode(engine, group=group, max_new_tokens=max_new_tokens)(prompts)
    policy.expect(rollout.version, "rollout")
    tally = Tally(GRPO(), len(prompts))
    blank = [
        RewardGroup(prompt=g.prompt, values=torch.zeros(g.size, dtype=torch.float64), by_function={})
        for g in rollout.groups
    ]
    tally.admit(list(zip(rollout.groups, blank, strict=True)))
    gaps: list[torch.Tensor] = []
    forward = boundaries(policy.model, prompts, attached=False, microbatch_tokens=8192)
    with torch.no_grad():
        for boundary in _value(forward):
            groups = [rollout.groups[prompt] for prompt in boundary.prompts]
            for batch in microbatches(boundary, groups, tally, 32, policy.model.device):
                logprobs, _ = score(policy.model, boundary, batch)
                difference = (logprobs.exp() - batch.engine_logprobs.exp()).abs()
                gaps.append(difference.flatten()[batch.real])
    every = torch.cat(gaps)
    return Mismatch(mean=float(every.mean()), max=float(every.max()))


def _value(generator: Generator[Any, None, Any]) -> Any:
    """Run to the end."""
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return stop.value

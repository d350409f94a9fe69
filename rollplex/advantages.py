"""From the scores of a group to its advantages: how much better than its siblings a response did.

This file knows TRL's rule and what to do where a score is missing. It does not know losses or where scores come from.

Where it differs from TRL: scores are float64, and a group of equal scores gets exactly 0, not the rounding error of its
mean divided by 1e-4.

Shapes: N prompts, G responses in a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

Scale = Literal["group", "batch", "none"]

EPSILON = 1e-4  # TRL's, added to the standard deviation


@dataclass(frozen=True, kw_only=True, eq=False)
class Advantages:
    """Advantages of the groups of a batch, with what was left out and why."""

    values: tuple[torch.Tensor, ...]
    """One ``[G]`` tensor a group; 0 where there is no score."""
    scored: tuple[torch.Tensor, ...]
    """One ``[G]`` bool tensor a group: which responses have a score."""
    signal: tuple[bool, ...]
    """Whether a group can teach anything: at least two scores, not all equal."""

    @property
    def groups_without_signal(self) -> int:
        """Groups whose scored responses all got the same reward, or fewer than two got any."""
        return sum(not s for s in self.signal)

    @property
    def groups_without_scores(self) -> int:
        """Groups in which no response has a score."""
        return sum(not bool(s.any()) for s in self.scored)

    def __repr__(self) -> str:
        return f"Advantages({len(self.values)} groups, {self.groups_without_signal} without signal)"


def advantages(values: torch.Tensor | Sequence[torch.Tensor], scale: Scale | bool = "group") -> Advantages:
    """Advantages of one group ``[G]``, of N groups ``[N, G]``, or of a list of groups of any sizes.

    A score minus the mean of its group, over (standard deviation + 1e-4): of the group, of the whole batch, or neither.
    NaN scores take no part in either and get 0, so that the others get what they would have got without them.

    >>> advantages(torch.tensor([1.0, 0.0, float("nan"), 0.5]), scale="none").values
    (tensor([ 0.5000, -0.5000,  0.0000,  0.0000]),)
    """
    scale = scale_name(scale)
    groups = _groups(values)
    scored = [~g.isnan() for g in groups]
    kept = [g[s] for g, s in zip(groups, scored, strict=True)]
    signal = [k.numel() > 1 and bool(k.min() != k.max()) for k in kept]
    whole = torch.cat(kept)
    batch_std = whole.std() if whole.numel() > 1 else whole.new_zeros(())
    made = []
    for group, mask, scores, teaches in zip(groups, scored, kept, signal, strict=True):
        advantage = torch.zeros_like(group)
        if teaches:
            advantage[mask] = scores - scores.mean()
            if scale != "none":
                advantage /= (scores.std() if scale == "group" else batch_std) + EPSILON
        made.append(advantage)
    return Advantages(values=tuple(made), scored=tuple(scored), signal=tuple(signal))


def scale_name(scale: object) -> Scale:
    """The name of a scale; TRL's True and False stand for ``"group"`` and ``"none"``.

    >>> scale_name(True)
    'group'
    """
    if isinstance(scale, bool):
        return "group" if scale else "none"
    for name in get_args(Scale):
        if scale == name:
            return name
    raise ValueError(f"scale_rewards={scale!r}: must be one of {', '.join(map(repr, get_args(Scale)))}, True or False")


def _groups(values: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        values = [values] if values.dim() == 1 else list(values) if values.dim() == 2 else [values]
    groups = list(values)
    if not groups:
        raise ValueError("making advantages of no groups: give at least one")
    for i, group in enumerate(groups):
        if group.dim() != 1 or not group.is_floating_point():
            raise ValueError(
                f"making advantages: group {i} is {group.dtype} of shape {tuple(group.shape)}, expected floats [G]"
            )
        if group.isinf().any():
            raise ValueError(
                f"making advantages: group {i} has infinite scores, {group.tolist()}; use NaN for 'not scored'"
            )
    return groups

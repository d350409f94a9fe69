"""What a step has to do: how many prompts, how long, how many responses, how long they get.

Lengths are drawn from a seed, so that a simulation repeats. Nothing here knows a model, a device or a schedule.

Shapes: N prompts, G responses a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy

from rollplex.bounds import AMOUNT, COUNT, ONE_OR_MORE, SHARE, expect


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of a training step, with distributions where steps differ.

    Lengths are log-normal with the given median and spread, cut at the limits; spread 0 makes them all equal. Their mean
    is above the median, the more the wider the spread.
    """

    name: str = "workload"
    """What it is called in tables."""
    prompts: int = 32
    """Prompts of a step."""
    group: int = 8
    """Responses to a prompt."""
    prompt_tokens: float = 4096.0
    """Median tokens of a prompt, visual ones included."""
    prompt_spread: float = 0.0
    """Standard deviation of the logarithm of a prompt's length."""
    max_prompt_tokens: int = 8192
    """Limit of a prompt's length."""
    visual_share: float = 0.9
    """Share of a prompt's tokens that are visual."""
    response_tokens: float = 512.0
    """Median tokens of a response."""
    response_spread: float = 0.6
    """Standard deviation of the logarithm of a response's length."""
    max_response_tokens: int = 2048
    """Limit of a response's length."""

    def __post_init__(self) -> None:
        doing = f"making the Workload {self.name!r}"
        expect(doing, vars(self), prompts=COUNT, group=COUNT, max_prompt_tokens=COUNT, max_response_tokens=COUNT)
        expect(doing, vars(self), prompt_tokens=ONE_OR_MORE, response_tokens=ONE_OR_MORE)
        expect(doing, vars(self), prompt_spread=AMOUNT, response_spread=AMOUNT, visual_share=SHARE)
        for what, median, limit in (
            ("prompt", self.prompt_tokens, self.max_prompt_tokens),
            ("response", self.response_tokens, self.max_response_tokens),
        ):
            if median > limit:
                raise ValueError(
                    f"{doing}: its median {what} has {median:g} tokens, and no {what} may have more than "
                    f"max_{what}_tokens={limit}. Raise the limit, or half of the lengths would be cut."
                )

    @classmethod
    def from_lengths(cls, prompt_tokens: Sequence[float], response_tokens: Sequence[float], **sizes: Any) -> Workload:
        """A workload like prompts and responses that were counted: median, spread and longest of each.

        Two humps, short questions and long videos say, are not log-normal: plan for each by itself.

        >>> work = Workload.from_lengths([900, 1100, 4000], [60, 80, 700], prompts=16)
        >>> work.prompt_tokens, work.max_prompt_tokens, round(work.response_spread, 2)
        (1100.0, 4000, 1.1)
        """
        fitted: dict[str, Any] = {}
        for what, lengths in (("prompt", prompt_tokens), ("response", response_tokens)):
            counted = numpy.asarray(lengths, dtype=float)
            if counted.ndim != 1 or not counted.size or not (counted >= 1).all() or not numpy.isfinite(counted).all():
                raise ValueError(
                    f"making a Workload from lengths: the {what}s' are {lengths!r}; give a list of token counts, at least "
                    "one, each of at least 1"
                )
            fitted[f"{what}_tokens"] = float(numpy.median(counted))
            fitted[f"{what}_spread"] = float(numpy.log(counted).std())
            fitted[f"max_{what}_tokens"] = int(counted.max())
        return cls(**{**fitted, **sizes})

    def draw(self, step: int = 0, *, seed: int = 0, prompts: int | None = None) -> Draw:
        """Lengths of one step; a pure function of the workload, the seed and the step.

        Its first prompts are the same however many are drawn: schedules that begin more of them see the same ones too.

        >>> Workload(prompts=2, group=3).draw(1).responses.shape
        (2, 3)
        """
        num = self.prompts if prompts is None else prompts
        each, groups = (numpy.random.default_rng((seed, step, what)) for what in (0, 1))
        return Draw(
            prompts=_lengths(each, (num,), self.prompt_tokens, self.prompt_spread, self.max_prompt_tokens),
            responses=_lengths(
                groups, (num, self.group), self.response_tokens, self.response_spread, self.max_response_tokens
            ),
            visual_share=self.visual_share,
        )

    def with_(self, **changes: float) -> Workload:
        """The same workload with some numbers changed."""
        return replace(self, **changes)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """The lengths of one step."""

    prompts: numpy.ndarray
    """``[N]`` tokens of each prompt."""
    responses: numpy.ndarray
    """``[N, G]`` tokens that are decoded for each response in this step; 0 where nothing is."""
    visual_share: float
    """Share of prompt tokens that are visual."""
    visual: numpy.ndarray | None = None
    """``[N]`` visual tokens of each prompt, where the share is not the same for all."""
    trained: numpy.ndarray | None = None
    """``[M]`` tokens of each response that is trained on, where that differs from what is decoded."""
    trained_prompts: numpy.ndarray | None = None
    """``[M]`` tokens of the prompt of each response that is trained on."""
    done: numpy.ndarray | None = None
    """``[N, G]`` tokens that had been decoded in earlier steps."""
    group: int | None = None
    """Trained responses of a prompt, where that is not G."""
    step: int | None = None
    """Index of the step that had these lengths, where it was measured."""

    def __post_init__(self) -> None:
        for name in ("prompts", "responses"):  # lists are as good
            object.__setattr__(self, name, numpy.asarray(vars(self)[name]))
        shapes = self.prompts.shape, self.responses.shape
        if not self.prompts.size or self.responses.ndim != 2 or shapes[0] != shapes[1][:1] or not self.responses.size:
            raise ValueError(
                f"giving the lengths of a step: prompts has shape {shapes[0]} and responses {shapes[1]}; give [N] and "
                "[N, G], with at least one prompt and one response"
            )
        # Written so that NaN fails too.
        if not (self.prompts >= 1).all() or not (self.responses >= 0).all():
            raise ValueError(
                f"giving the lengths of a step: the shortest prompt has {self.prompts.min()} tokens and the shortest "
                f"response {self.responses.min()}; give at least 1 and at least 0"
            )
        expect("giving the lengths of a step", vars(self), visual_share=SHARE)

    @property
    def num_prompts(self) -> int:
        """N."""
        return len(self.prompts)

    @property
    def visual_tokens(self) -> numpy.ndarray:
        """``[N]`` visual tokens of each prompt."""
        return self.prompts * self.visual_share if self.visual is None else self.visual

    def suffixes(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """``[M]`` prompt and response lengths of what is trained on."""
        if self.trained is not None and self.trained_prompts is not None:
            return self.trained_prompts, self.trained
        return numpy.repeat(self.prompts, self.responses.shape[1]), self.responses.ravel()

    @property
    def group_size(self) -> int:
        """Trained responses of a prompt."""
        return self.group or self.responses.shape[1]

    @cached_property
    def trained_only(self) -> Draw:
        """The prompts that are trained on, each once: where a selection leaves some out, known only after the rollout."""
        if self.trained_prompts is None or self.trained is None:
            return self
        return Draw(
            prompts=self.trained_prompts[:: self.group_size],
            responses=self.trained.reshape(-1, self.group_size),
            visual_share=self.visual_share,
        )

    def before(self) -> numpy.ndarray:
        """``[N, G]`` tokens that were there before this step decodes."""
        return numpy.zeros_like(self.responses) if self.done is None else self.done


def _lengths(
    generator: numpy.random.Generator, shape: tuple[int, ...], median: float, spread: float, limit: int
) -> numpy.ndarray:
    with numpy.errstate(over="ignore"):  # a wide spread reaches infinity, which the limit cuts
        drawn = median * numpy.exp(spread * generator.standard_normal(shape))
    return numpy.clip(numpy.rint(drawn), 1, limit).astype(numpy.int64)

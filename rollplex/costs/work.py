"""How much work a phase has, counted so that each part can have a rate of its own.

Counted from lengths and a model's sizes; nothing here knows seconds.

Shapes: N prompts, G responses a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy

from rollplex.costs.geometry import Geometry
from rollplex.costs.workload import Draw


@dataclass(frozen=True, kw_only=True)
class Work:
    """Passes, and the operations of one forward over what they hold; a backward is counted by its forward."""

    passes: float = 0.0
    """How often layers are called, whatever they are given."""
    vision: float = 0.0
    """Operations of the vision tower, its attention over whole pictures left out."""
    text: float = 0.0
    """Operations of the language model's matrices."""
    attention: float = 0.0
    """Operations between pairs of tokens, and of patches of a picture."""

    def __add__(self, other: Work) -> Work:
        return Work(
            passes=self.passes + other.passes,
            vision=self.vision + other.vision,
            text=self.text + other.text,
            attention=self.attention + other.attention,
        )

    def part(self, share: float, *, passes: float) -> Work:
        """A share of the operations, in passes of its own."""
        return Work(passes=passes, vision=self.vision * share, text=self.text * share, attention=self.attention * share)

    @property
    def operations(self) -> float:
        """All of them."""
        return self.vision + self.text + self.attention

    def features(self) -> numpy.ndarray:
        """``[4]``, in the order of the fields."""
        return numpy.array(astuple(self))


def prefix_work(geometry: Geometry, draw: Draw, passes: int = 1) -> list[Work]:
    """A forward over each of N prompts, each with one picture of all its visual tokens, in so many passes over all.

    >>> from rollplex.costs.geometry import geometry
    >>> from rollplex.costs.workload import Workload
    >>> short, long = (Workload(prompts=2, prompt_tokens=tokens).draw() for tokens in (1000, 2000))
    >>> small, large = (prefix_work(geometry("Qwen2.5-VL-3B"), draw)[0] for draw in (short, long))
    >>> large.text / small.text, large.attention / small.attention, large.passes
    (2.0, 4.0, 0.5)
    """
    made: list[Work] = []
    for tokens, visual in zip(draw.prompts.astype(float).tolist(), draw.visual_tokens.tolist(), strict=True):
        windows = geometry.vision_flops(visual, patches_together=0.0)
        whole = geometry.vision_flops(visual, patches_together=visual * geometry.merge) - windows
        made.append(
            Work(
                passes=passes / draw.num_prompts,
                vision=windows,
                text=geometry.text_flops(tokens, 0.0),
                attention=whole + geometry.text_flops(0.0, tokens**2 / 2),
            )
        )
    return made


def suffix_work(geometry: Geometry, draw: Draw, passes: int = 1) -> list[Work]:
    """A forward over the responses of each of N prompts, in so many passes over all."""
    made: list[Work] = []
    for prompt, group in zip(draw.prompts.tolist(), draw.responses.astype(float), strict=True):
        made.append(
            Work(
                passes=passes / draw.num_prompts,
                text=geometry.text_flops(float(group.sum()), 0.0, float(group.sum())),
                attention=geometry.text_flops(0.0, float((group * (prompt + group / 2)).sum())),
            )
        )
    return made


def total(works: Sequence[Work]) -> Work:
    """All of them together.

    >>> total([Work(passes=1, text=2.0), Work(passes=1, vision=3.0)])
    Work(passes=2.0, vision=3.0, text=2.0, attention=0.0)
    """
    return sum(works, Work())

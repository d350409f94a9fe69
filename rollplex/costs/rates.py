"""Seconds for each part of some work, fitted to what was measured.

It knows counts and seconds. Where they come from, a trace or a table, is not its business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy
from scipy.optimize import nnls

from rollplex.bounds import POSITIVE
from rollplex.costs.work import Work

PULL = 0.01
"""Weight of the pull to one common rate, beside the mean squared relative error of the fit. At a hundredth, a part moves
away from the common rate where the measurements tell it apart by more than their usual noise of a few per cent."""
NOISE = 0.1
"""Relative errors above it are taken for moments when the machine did something else, and count less."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a pass costs, and an operation of each part.

    >>> Rates.common(1e-12).seconds(Work(passes=3, text=2e12))
    2.0
    """

    pass_s: float = 0.0
    """Seconds of a pass, whatever it is given."""
    vision_s: float
    """Seconds of an operation of the vision tower."""
    text_s: float
    """Of the language model's matrices."""
    attention_s: float
    """Of attention."""

    @classmethod
    def common(cls, seconds: float) -> Rates:
        """One rate for every operation, and nothing for a pass."""
        return cls(vision_s=seconds, text_s=seconds, attention_s=seconds)

    @classmethod
    def fit(cls, measured: Sequence[tuple[Work, float]]) -> Rates:
        """Least squares of relative errors (beyond `NOISE`, absolute ones), none below zero, pulled to one common rate.

        Where all the work measured has one shape, nothing tells its parts apart, and the common rate is the answer, with
        no cost of a pass.
        """
        if not measured:
            raise ValueError("fitting rates: nothing was measured. Give at least one pair of work and seconds.")
        for work, taken in measured:
            if not (POSITIVE.hold(taken) and POSITIVE.hold(work.operations)):
                raise ValueError(
                    f"fitting rates: {work} took {taken} s; every measurement needs work and time. Leave out what has none."
                )
        seconds = numpy.array([s for _, s in measured])
        base = median(s / work.operations for work, s in measured)
        scale = numpy.array([float(numpy.median(seconds)), base, base, base])
        parts = numpy.stack([work.features() for work, _ in measured]) * scale
        pull = (PULL * len(seconds)) ** 0.5
        common = numpy.array([0.0, 1.0, 1.0, 1.0])
        found = common
        for _ in range(5):
            # Relative to what is expected: relative to what was measured, slow moments would count too little.
            expected = parts @ found
            error = numpy.abs(seconds / expected - 1)
            weights = numpy.minimum(1.0, NOISE / error.clip(1e-9)) ** 0.5 / expected
            found, _ = nnls(
                numpy.concatenate([parts * weights[:, None], pull * numpy.eye(4)]),
                numpy.concatenate([seconds * weights, pull * common]),
            )
        pass_s, vision_s, text_s, attention_s = (float(value) for value in found * scale)
        return cls(pass_s=pass_s, vision_s=vision_s, text_s=text_s, attention_s=attention_s)

    def seconds(self, work: Work) -> float:
        """Of so much work."""
        return (
            self.pass_s * work.passes
            + self.vision_s * work.vision
            + self.text_s * work.text
            + self.attention_s * work.attention
        )

    def faster(self, times: float) -> Rates:
        """On a device that is so many times as fast."""
        return Rates(
            pass_s=self.pass_s / times,
            vision_s=self.vision_s / times,
            text_s=self.text_s / times,
            attention_s=self.attention_s / times,
        )

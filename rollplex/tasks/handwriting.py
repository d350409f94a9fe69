"""Real handwriting: scikit-learn's 1797 scanned digits, split once and drawn into pictures.

Knows the scans, which of them are held out, and how one is drawn into a square cell.
Does not know questions, rows or visual tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rollplex.task import Split

SCAN_LEVELS = 16
"""The scans hold 0 (paper) to 16 (ink)."""
HELDOUT_STRIDE = 6
"""Every sixth scan is held out. The split never depends on a seed: a model trained under one seed can be judged under any."""
INK_SHARE = 0.75
"""Share of a cell's side that a digit takes: the rest is room to shift it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Handwriting:
    """The scans of one split, by digit."""

    split: Split
    """Which split these are."""
    scans: tuple[NDArray[np.uint8], ...]
    """Ten arrays ``[num_scans, 8, 8]``, one for each digit, 0 paper to 255 ink."""

    @classmethod
    def load(cls, split: Split) -> Handwriting:
        """The scans of a split, read once a process.

        >>> train, heldout = Handwriting.load("train"), Handwriting.load("heldout")
        >>> sum(map(len, train.scans)), sum(map(len, heldout.scans))
        (1498, 299)
        """
        return _load(split)

    def pick(self, digit: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """One random scan ``[8, 8]`` of a digit."""
        return self.scans[digit][rng.integers(len(self.scans[digit]))]

    @staticmethod
    def draw(scan: NDArray[np.uint8], *, cell: int, jitter: float, rng: np.random.Generator) -> NDArray[np.uint8]:
        """A scan as a ``[cell, cell]`` picture, white on black.

        ``jitter`` is the largest shift from the centre, as a share of the free border.
        """
        side = round(cell * INK_SHARE)
        ink = np.asarray(Image.fromarray(scan).resize((side, side), Image.Resampling.BICUBIC))
        margin = (cell - side) / 2
        top, left = (round(margin + margin * jitter * rng.uniform(-1, 1)) for _ in range(2))
        picture = np.zeros((cell, cell), np.uint8)
        picture[top : top + side, left : left + side] = ink
        return picture


def picture(grey: NDArray[np.uint8], *, noise: float, rng: np.random.Generator) -> Image.Image:
    """Grey values ``[height, width]`` as an RGB picture, with noise over all of it.

    ``noise`` is the standard deviation as a share of full white; values outside the range are clipped.
    """
    if noise:
        grey = (grey + rng.normal(0, 255 * noise, grey.shape)).clip(0, 255).round().astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


@cache
def _load(split: Split) -> Handwriting:
    # scikit-learn takes a second to import: only who draws a digit pays for it.
    from sklearn.datasets import load_digits

    levels, digits = (np.asarray(part) for part in load_digits(return_X_y=True))
    images = (levels.reshape(-1, 8, 8) * (255 / SCAN_LEVELS)).round().astype(np.uint8)
    heldout = np.arange(len(images)) % HELDOUT_STRIDE == HELDOUT_STRIDE - 1
    chosen = heldout if split == "heldout" else ~heldout
    scans = tuple(images[chosen & (digits == digit)] for digit in range(10))
    return Handwriting(split=split, scans=scans)

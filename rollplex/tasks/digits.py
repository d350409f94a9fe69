"""Pictures of several handwritten digits, and a question about them.

Knows how rows are drawn, asked and answered. Does not know models: the number of visual tokens follows from the picture's
size alone (one token for 28 x 28 pixels in the Qwen2-VL family).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from rollplex.task import RewardFunction, Row, Split
from rollplex.tasks.answer import correct_answer, response
from rollplex.tasks.handwriting import Handwriting, picture

Question = Literal["largest", "sum", "count"]

VISUAL_TOKEN_PIXELS = 28
"""Side of the square that one visual token covers: patch 14, merged 2 x 2."""
KINDS = {"even": (0, 2, 4, 6, 8), "above 4": (5, 6, 7, 8, 9)}
"""What can be counted. Not opposites: were they, no digit would tell anything before the question is understood."""
SPLITS: tuple[Split, ...] = get_args(Split)
STREAM = 1
"""Keeps the random numbers of this task apart from another task's with the same seed."""


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Handwritten digits in the cells of a grid: which is largest, what is their sum, how many are even or above 4.

    The digits are read row by row, and a response writes each down with the result so far. Answers are spread evenly, so
    that a blind guess is seldom right. Cells without a digit stay black: a larger grid makes the prompt longer.

    >>> task = Digits(seed=0)
    >>> row = task.rows(3)[2]
    >>> row["images"][0].size, task.num_visual_tokens
    ((224, 224), 64)
    >>> row["prompt"][0]["content"][1]["text"], row["digits"], row["answer"]
    ('What is the sum of the digits?', [8, 3, 3, 6], '20')
    >>> task.solution(row)
    '<think> 8 : 8 , 3 : 11 , 3 : 14 , 6 : 20 </think> <answer> 20 </answer>'
    """

    seed: int = 0
    """Another seed, other rows; the split into train and held-out handwriting stays."""
    digits: int = 4
    """Digits in a picture."""
    grid: tuple[int, int] = (4, 4)
    """Rows and columns of cells."""
    cell: int = 56
    """Pixels along a cell's side, a multiple of 28."""
    questions: tuple[Question, ...] = ("largest", "sum", "count")
    """What is asked, each equally often."""
    jitter: float = 0.6
    """Largest shift of a digit, as a share of the free border of its cell."""
    noise: float = 0.0
    """Standard deviation of grey noise, as a share of full white: the difficulty of seeing."""

    def __post_init__(self) -> None:
        rows, columns = self.grid
        if self.cell < VISUAL_TOKEN_PIXELS or self.cell % VISUAL_TOKEN_PIXELS:
            raise ValueError(
                f"Digits: laying out cells of {self.cell} pixels, but a visual token covers {VISUAL_TOKEN_PIXELS}. "
                f"Use a multiple, such as cell={max(1, round(self.cell / VISUAL_TOKEN_PIXELS)) * VISUAL_TOKEN_PIXELS}."
            )
        if not 1 <= self.digits <= rows * columns or min(self.grid) < 1:
            raise ValueError(
                f"Digits: placing {self.digits} digits in a grid of {rows} x {columns} cells. "
                "Use at least one digit, and at least as many cells as digits."
            )
        check_questions("Digits", self.questions, get_args(Question))
        check_share("Digits", "jitter", self.jitter)
        check_share("Digits", "noise", self.noise)

    @classmethod
    def input_heavy(cls, seed: int = 0, *, grid: tuple[int, int] = (11, 12)) -> Digits:
        """The same questions on a picture of more than 500 visual tokens: a long prompt with a short answer.

        >>> Digits.input_heavy().num_visual_tokens
        528
        """
        return cls(seed=seed, grid=grid)

    @property
    def name(self) -> str:
        """Short name, for logs."""
        return "digits"

    @property
    def rewards(self) -> Sequence[RewardFunction]:
        """One function: 1 for the right answer, else 0."""
        return (correct_answer,)

    @property
    def num_visual_tokens(self) -> int:
        """Visual tokens of a prompt, in a model of 28 pixels a token."""
        rows, columns = self.grid
        return rows * columns * (self.cell // VISUAL_TOKEN_PIXELS) ** 2

    def rows(self, num: int, *, step: int = 0, split: Split = "train") -> list[Row]:
        """``num`` rows of a split; the same seed, step and split give the same rows, and fewer are the first of more."""
        check_request(self.name, num, step, split)
        return [
            self._row(split, np.random.default_rng([self.seed, STREAM, SPLITS.index(split), step, i]))
            for i in range(num)
        ]

    def solution(self, row: Row) -> str:
        """The reference response: each digit as it is read, with the result so far."""
        return response(row["digits"], row["working"])

    def _row(self, split: Split, rng: np.random.Generator) -> dict[str, Any]:
        question: Question = self.questions[rng.integers(len(self.questions))]
        digits, text, working = _ask(question, self.digits, rng)
        return {
            "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}],
            "images": [self._picture(Handwriting.load(split), digits, rng)],
            "answer": str(working[-1]),
            "question": question,
            "digits": digits,
            "working": working,
        }

    def _picture(self, handwriting: Handwriting, digits: list[int], rng: np.random.Generator) -> Image.Image:
        rows, columns = self.grid
        canvas = np.zeros((rows, self.cell, columns, self.cell), np.uint8)
        cells = np.sort(rng.choice(rows * columns, len(digits), replace=False))
        for digit, cell in zip(digits, cells, strict=True):
            row, column = divmod(int(cell), columns)
            scan = handwriting.pick(digit, rng)
            canvas[row, :, column] = handwriting.draw(scan, cell=self.cell, jitter=self.jitter, rng=rng)
        return picture(canvas.reshape(rows * self.cell, columns * self.cell), noise=self.noise, rng=rng)


def _ask(question: Question, num: int, rng: np.random.Generator) -> tuple[list[int], str, list[int]]:
    """Digits, question text and results so far, of which the last is the answer; answers are spread as evenly as can be."""
    match question:
        case "largest":
            # The maximum of uniform digits is mostly 9: draw it first, so that guessing 9 does not pay.
            largest = int(rng.integers(10))
            digits = rng.integers(largest + 1, size=num)
            digits[rng.integers(num)] = largest
            return digits.tolist(), "Which digit is the largest?", np.maximum.accumulate(digits).tolist()
        case "sum":
            digits = rng.integers(10, size=num).tolist()
            return digits, "What is the sum of the digits?", list(accumulate(digits))
        case "count":
            kind = list(KINDS)[rng.integers(len(KINDS))]
            counted = rng.permutation(num) < rng.integers(num + 1)
            digits = [int(rng.choice(KINDS[kind] if hit else sorted({*range(10)} - {*KINDS[kind]}))) for hit in counted]
            return digits, f"How many digits are {kind}?", list(accumulate(map(int, counted)))


def check_questions(task: str, questions: Sequence[str], known: Sequence[str]) -> None:
    """Refuse an empty choice of questions, or one that the task does not know."""
    unknown = [q for q in questions if q not in known]
    if unknown or not questions:
        raise ValueError(f"{task}: choosing questions, found {unknown or 'none'}. Use some of {', '.join(known)}.")


def check_share(task: str, name: str, value: float) -> None:
    """Refuse a share outside 0 to 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{task}: reading {name}={value}. It is a share: use a number from 0 to 1.")


def check_request(task: str, num: int, step: int, split: str) -> None:
    """Refuse a request for rows that has no meaning."""
    if num < 0 or step < 0:
        raise ValueError(f"{task}: asked for {num} rows of step {step}. Neither can be negative.")
    if split not in SPLITS:
        raise ValueError(f"{task}: asked for the split {split!r}. Use {' or '.join(map(repr, SPLITS))}.")

"""Short videos of handwritten digits, and a question about their order or change.

Knows how clips are drawn, asked and answered; a clip is a list of frames and a frame rate. Does not know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from rollplex.task import RewardFunction, Row, Split
from rollplex.tasks.answer import correct_answer, response
from rollplex.tasks.digits import SPLITS, VISUAL_TOKEN_PIXELS, check_questions, check_request, check_share
from rollplex.tasks.handwriting import Handwriting, picture

Question = Literal["first", "last", "largest", "changes"]

TEMPORAL_PATCH = 2
"""Frames that one visual token spans."""
STREAM = 2
"""Keeps the random numbers of this task apart from another task's with the same seed."""
TEXTS: dict[Question, str] = {
    "first": "Which digit comes first?",
    "last": "Which digit comes last?",
    "largest": "Which digit is the largest?",
    "changes": "How many times does the digit change?",
}


@dataclass(frozen=True, kw_only=True)
class Clips:
    """A clip shows one handwritten digit after another: which comes first or last, which is largest, how often it changes.

    >>> task = Clips(seed=0)
    >>> row = task.rows(1)[0]
    >>> len(row["videos"][0]), row["videos"][0][0].size, task.num_visual_tokens
    (8, (56, 56), 16)
    >>> task.solution(row)
    '<think> 0 : 0 , 3 : 1 , 1 : 2 , 9 : 3 </think> <answer> 3 </answer>'
    """

    seed: int = 0
    """Another seed, other rows; the split into train and held-out handwriting stays."""
    shots: int = 4
    """Digits shown one after another."""
    frames_per_shot: int = 2
    """Frames that show the same digit, shifted a little; even, so that no visual token spans two shots."""
    pixels: int = 56
    """Pixels along a frame's side, a multiple of 28."""
    fps: float = 2.0
    """Frames a second."""
    questions: tuple[Question, ...] = ("first", "last", "largest", "changes")
    """What is asked, each equally often."""
    jitter: float = 0.6
    """Largest shift of a digit, as a share of the free border of the frame."""
    noise: float = 0.0
    """Standard deviation of grey noise, as a share of full white."""

    def __post_init__(self) -> None:
        if self.pixels < VISUAL_TOKEN_PIXELS or self.pixels % VISUAL_TOKEN_PIXELS:
            raise ValueError(
                f"Clips: drawing frames of {self.pixels} pixels, but a visual token covers {VISUAL_TOKEN_PIXELS}. "
                f"Use a multiple, such as pixels={max(1, round(self.pixels / VISUAL_TOKEN_PIXELS)) * VISUAL_TOKEN_PIXELS}."
            )
        if self.frames_per_shot < TEMPORAL_PATCH or self.frames_per_shot % TEMPORAL_PATCH:
            raise ValueError(
                f"Clips: showing each digit for {self.frames_per_shot} frames, but a visual token spans {TEMPORAL_PATCH}. "
                "Use an even number."
            )
        if self.shots < 1 or not self.fps > 0:
            raise ValueError(f"Clips: cutting {self.shots} shots at {self.fps} frames a second. Both must be positive.")
        check_questions("Clips", self.questions, get_args(Question))
        check_share("Clips", "jitter", self.jitter)
        check_share("Clips", "noise", self.noise)

    @property
    def name(self) -> str:
        """Short name, for logs."""
        return "clips"

    @property
    def rewards(self) -> Sequence[RewardFunction]:
        """One function: 1 for the right answer, else 0."""
        return (correct_answer,)

    @property
    def num_frames(self) -> int:
        """Frames of a clip."""
        return self.shots * self.frames_per_shot

    @property
    def num_visual_tokens(self) -> int:
        """Visual tokens of a prompt, in a model of 28 pixels and 2 frames a token."""
        return self.num_frames // TEMPORAL_PATCH * (self.pixels // VISUAL_TOKEN_PIXELS) ** 2

    def rows(self, num: int, *, step: int = 0, split: Split = "train") -> list[Row]:
        """``num`` rows of a split; the same seed, step and split give the same rows, and fewer are the first of more."""
        check_request(self.name, num, step, split)
        return [
            self._row(split, np.random.default_rng([self.seed, STREAM, SPLITS.index(split), step, i]))
            for i in range(num)
        ]

    def solution(self, row: Row) -> str:
        """The reference response: each digit in the order shown, with the result so far."""
        return response(row["digits"], row["working"])

    def _row(self, split: Split, rng: np.random.Generator) -> dict[str, Any]:
        question: Question = self.questions[rng.integers(len(self.questions))]
        digits, working = _ask(question, self.shots, rng)
        content = [{"type": "video"}, {"type": "text", "text": TEXTS[question]}]
        handwriting = Handwriting.load(split)
        return {
            "prompt": [{"role": "user", "content": content}],
            "videos": [[frame for digit in digits for frame in self._shot(handwriting, digit, rng)]],
            "fps": self.fps,
            "answer": str(working[-1]),
            "question": question,
            "digits": digits,
            "working": working,
        }

    def _shot(self, handwriting: Handwriting, digit: int, rng: np.random.Generator) -> list[Image.Image]:
        # The frames of a shot show one scan at shifting places; the next shot is another scan, even of the same digit.
        scan = handwriting.pick(digit, rng)
        frames = (
            handwriting.draw(scan, cell=self.pixels, jitter=self.jitter, rng=rng) for _ in range(self.frames_per_shot)
        )
        return [picture(frame, noise=self.noise, rng=rng) for frame in frames]


def _ask(question: Question, num: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Digits and results so far, of which the last is the answer; answers are spread evenly."""
    match question:
        case "first":
            digits = rng.integers(10, size=num).tolist()
            return digits, [digits[0]] * num
        case "last":
            digits = rng.integers(10, size=num).tolist()
            return digits, digits
        case "largest":
            # The maximum of uniform digits is mostly 9: draw it first, so that guessing 9 does not pay.
            largest = int(rng.integers(10))
            digits = rng.integers(largest + 1, size=num)
            digits[rng.integers(num)] = largest
            return digits.tolist(), np.maximum.accumulate(digits).tolist()
        case "changes":
            changes = int(rng.integers(num))
            moves = rng.permutation([0] * (num - 1 - changes) + rng.integers(1, 10, size=changes).tolist()).astype(int)
            digits = np.cumsum([rng.integers(10), *moves]) % 10
            return digits.tolist(), np.cumsum([0, *(moves > 0)]).tolist()

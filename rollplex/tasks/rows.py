"""A user's own rows and reward functions as a task.

Knows how rows are split, shuffled and handed out. Does not read pictures or prompts: whether a row can become a prompt is
seen at ingestion, which answers row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from rollplex.task import RewardFunction, Row, Split
from rollplex.tasks.digits import check_request

STREAM = 3
"""Keeps the random numbers of this task apart from another task's with the same seed."""


@final
class Rows:
    """Rows and reward functions of your own, shuffled anew in every pass.

    A row has ``prompt`` (messages), ``images`` or ``videos`` where there are any, and further columns, which reach the
    reward functions by name. ``heldout`` is the share of the rows to keep for evaluation, or the rows themselves.

    >>> questions = [{"prompt": [{"role": "user", "content": f"{n} + 1 ="}], "answer": str(n + 1)} for n in range(10)]
    >>> def right(completions, answer, **columns):
    ...     return [float(c.strip() == a) for c, a in zip(completions, answer)]
    >>> task = Rows(rows=questions, rewards=[right], heldout=0.2)
    >>> task
    Rows(8 train, 2 heldout, rewards: right)
    >>> task.rows(3, step=1) == task.rows(3, step=1)
    True
    """

    def __init__(
        self,
        *,
        rows: Sequence[Row],
        rewards: Sequence[RewardFunction],
        seed: int = 0,
        heldout: float | Sequence[Row] = 0.1,
        name: str = "rows",
    ) -> None:
        _check_rows("rows", rows)
        _check_rewards(rewards)
        self.name = name
        self.rewards = tuple(rewards)
        self.seed = seed
        if isinstance(heldout, int | float):
            order = np.random.default_rng([seed, STREAM, 0]).permutation(len(rows))
            num_heldout = _num_heldout(heldout, len(rows))
            self._train = tuple(rows[i] for i in sorted(order[num_heldout:]))
            self._heldout = tuple(rows[i] for i in sorted(order[:num_heldout]))
        else:
            _check_rows("heldout", heldout)
            self._train, self._heldout = tuple(rows), tuple(heldout)

    def rows(self, num: int, *, step: int = 0, split: Split = "train") -> list[Row]:
        """``num`` rows of a split, a pure function of seed, step, split and ``num``.

        Training rows are those at ``step * num`` and after in an endless sequence of shuffled passes. Held-out rows are
        never repeated: each counts once in an evaluation.
        """
        check_request(self.name, num, step, split)
        if split == "train":
            return [self._at(place) for place in range(step * num, step * num + num)]
        first = step * num
        if first + num > len(self._heldout):
            raise ValueError(
                f"{self.name}: asked for {num} held-out rows of step {step}, but there are {len(self._heldout)} in all. "
                "Ask for fewer, or give more with heldout=."
            )
        return list(self._heldout[first : first + num])

    def _at(self, place: int) -> Row:
        turn, index = divmod(place, len(self._train))
        return self._train[_order(self.seed, turn, len(self._train))[index]]

    def __repr__(self) -> str:
        names = ", ".join(reward.__name__ for reward in self.rewards)
        return f"Rows({len(self._train)} train, {len(self._heldout)} heldout, rewards: {names})"


@lru_cache(maxsize=4)
def _order(seed: int, turn: int, num: int) -> NDArray[np.intp]:
    """The order of the rows in one pass; the cache saves shuffling a large set once a row."""
    return np.random.default_rng([seed, STREAM, 1, turn]).permutation(num)


def _num_heldout(share: float, num: int) -> int:
    if not 0 <= share < 1:
        raise ValueError(
            f"Rows: splitting {num} rows, found heldout={share}. Give a share below 1, or the held-out rows themselves."
        )
    # At least one row on each side where the share asks for any: an empty split would only fail later.
    return min(max(round(share * num), int(share > 0)), num - 1)


def _check_rows(argument: str, rows: Sequence[Row]) -> None:
    if isinstance(rows, str | Mapping) or not isinstance(rows, Sequence) or not rows:
        raise ValueError(
            f"Rows: reading {argument}, found {type(rows).__name__}{'' if rows else ' without entries'}. "
            "Give a non-empty list of rows; list(dataset) makes one of a data set."
        )
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping) or "prompt" not in row:
            found = f"columns {sorted(row)}" if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(
                f"Rows: reading {argument}[{index}], found {found}. A row is a mapping with a 'prompt' of messages; "
                "from_verl and from_easyr1 convert rows of those trainers."
            )


def _check_rewards(rewards: Sequence[RewardFunction]) -> None:
    if not isinstance(rewards, list | tuple) or not rewards or not all(callable(reward) for reward in rewards):
        raise ValueError(
            f"Rows: reading rewards, found {rewards!r}. Give a non-empty list of functions, called with keywords: "
            "f(prompts, completions, completion_ids, **columns)."
        )

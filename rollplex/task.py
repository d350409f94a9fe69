"""Where prompts come from and what scores the answers.

A row has the form that TRL reads: ``prompt`` (messages), ``images`` or ``videos``, any other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

Row = Mapping[str, Any]
"""``{"prompt": [{"role", "content"}], "images": [PIL], "videos": [[PIL]], **columns}``."""

RewardFunction = Callable[..., Sequence[float | None]]
"""``f(prompts, completions, completion_ids, **columns) -> [float | None]``, called with keywords, as TRL does."""

Split = Literal["train", "heldout"]


class Task(Protocol):
    """An endless, seeded source of rows with its scoring rule.

    Asking twice for the same step gives the same rows: there is no hidden position to save.
    """

    @property
    def name(self) -> str:
        """Short name, for logs."""
        ...

    @property
    def rewards(self) -> Sequence[RewardFunction]:
        """The functions that score a response; their sum is the reward."""
        ...

    def rows(self, num: int, *, step: int = 0, split: Split = "train") -> list[Row]:
        """``num`` rows of a split, a pure function of the task's seed, the step and the split."""
        ...

"""An iterator of training steps that remembers the run it belongs to, so that it can be watched and logged.

``rx.watch(rx.log(run.steps(50), sink))`` wraps one `Steps` in another; the user's ``for`` is the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollplex.step import Step

if TYPE_CHECKING:
    from rollplex.run import Run


@dataclass(eq=False)
class Steps:
    """Steps of one run, made one at a time as the loop asks for them."""

    run: Run
    """The run: its trace, task, phases and schedule."""
    num: int
    """How many steps were asked for."""
    iterable: Iterable[Step]
    """Where the steps come from."""

    def through(self, iterable: Iterable[Step]) -> Steps:
        """The same run's steps, passed through another iterator (a view or a logger)."""
        return Steps(run=self.run, num=self.num, iterable=iterable)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.iterable)

    def __len__(self) -> int:
        return self.num

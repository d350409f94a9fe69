"""Looking at a run while it goes on: a live box in a notebook, a line of text elsewhere.

This file decides which, when to draw and what happens when a view fails. It does not draw and does not train.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from rollplex.views.progress import Progress, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollplex.step import Step
    from rollplex.steps import Steps
    from rollplex.trace import Trace

T = TypeVar("T")

_SHARE = 0.03
"""Most of the run's time that drawing may take: after a draw of 30 ms none comes for a second."""


def watch(steps: Steps, every: int = 1) -> Steps:
    """The same steps, shown as they come: in a live notebook as a box, else as a progress line on standard error.

    The box has the progress, the timeline of the last step, memory by owner, the reward curve and one group of
    rollouts with its pictures. It is drawn at most every ``every`` steps, less often where drawing would cost more than
    3 % of the run, and once more when the loop ends, however it ends; then a still picture takes its place. A view that
    fails shows its error and lets the run go on. ::

        for step in watch(run.steps(50)):
            if step.rewards.mean() > 0.9:
                break
    """
    if every < 1:
        raise ValueError(f"watching a run: every is {every}. Give a number of steps, at least 1.")
    return steps.through(_Watched(steps, every))


def in_notebook() -> bool:
    """Whether the code runs in a kernel that a notebook can display from.

    >>> in_notebook()
    False
    """
    # A kernel has both modules loaded; looking them up costs nothing and imports nothing into plain Python.
    shell_module, ipython = sys.modules.get("ipykernel.zmqshell"), sys.modules.get("IPython")
    if shell_module is None or ipython is None:
        return False
    return isinstance(ipython.get_ipython(), shell_module.ZMQInteractiveShell)


class _View(Protocol):
    def progress(self, done: int, words: str) -> None: ...

    def draw(self, step: Step, trace: Trace, curve: Sequence[float]) -> None: ...

    def problem(self, text: str) -> None: ...

    def finish(self, last: _Last, trace: Trace) -> None: ...


@dataclass
class _Last:
    """How far the loop came."""

    num: int
    started_s: float
    done: int = 0
    step: Step | None = None
    reward: float | None = None
    curve: list[float] = field(default_factory=list)

    def take(self, step: Step) -> None:
        self.done, self.step = self.done + 1, step
        if step.rewards is not None and step.rewards.groups:
            mean = step.rewards.mean()
            self.reward = mean
            self.curve.append(mean)

    @property
    def words(self) -> str:
        return line(self.done, self.num, reward=self.reward, elapsed_s=time.perf_counter() - self.started_s)


@dataclass
class _Throttle:
    """Says when a draw is due, from what the last one cost."""

    every: int
    next_s: float = float("-inf")

    def due(self, done: int) -> bool:
        return (done - 1) % self.every == 0 and time.perf_counter() >= self.next_s

    def spent(self, cost_s: float) -> None:
        self.next_s = time.perf_counter() + cost_s / _SHARE


@dataclass(eq=False)
class _Watched:
    # An iterable, not a generator: see `rollplex.log`. Each for loop gets its own box.
    steps: Steps
    every: int

    def __iter__(self) -> Iterator[Step]:
        trace, last = self.steps.run.trace, _Last(self.steps.num, time.perf_counter())
        view: _View = _Terminal(self.steps.num)
        if in_notebook():
            view = _safely(view, lambda: _Notebook(self.steps.num)) or view
        throttle = _Throttle(self.every)
        try:
            for step in self.steps:
                last.take(step)
                _safely(view, lambda: view.progress(last.done, last.words))
                if throttle.due(last.done):
                    begun = time.perf_counter()
                    _safely(view, lambda step=step: view.draw(step, trace, last.curve))
                    throttle.spent(time.perf_counter() - begun)
                yield step
        finally:
            _safely(view, lambda: view.finish(last, trace))


def _safely(view: _View, act: Callable[[], T]) -> T | None:
    """Do it; an error is shown where the view is and the run goes on. An interrupt is the user's and passes."""
    try:
        return act()
    except Exception:  # noqa: BLE001 - a view is not worth a training run, whatever breaks in it
        text = f"The view failed; the run goes on.\n{traceback.format_exc()}"
        try:
            view.problem(text)
        except Exception:  # noqa: BLE001 - the view cannot even show its error
            sys.stderr.write(text)
        return None


class _Terminal:
    def __init__(self, num: int) -> None:
        self._progress = Progress(num, sys.stderr)

    def progress(self, done: int, words: str) -> None:
        self._progress.show(done, words)

    def draw(self, step: Step, trace: Trace, curve: Sequence[float]) -> None:
        pass

    def problem(self, text: str) -> None:
        self._progress.say(text)

    def finish(self, last: _Last, trace: Trace) -> None:
        if last.done:
            self._progress.show(last.done, last.words, last=True)


class _Notebook:
    def __init__(self, num: int) -> None:
        from rollplex.views.live import Live

        self._live = Live(num)

    def progress(self, done: int, words: str) -> None:
        self._live.progress(done, words)

    def draw(self, step: Step, trace: Trace, curve: Sequence[float]) -> None:
        self._live.draw(step, trace, curve)

    def problem(self, text: str) -> None:
        self._live.problem(text)

    def finish(self, last: _Last, trace: Trace) -> None:
        self._live.finish(last.words, last.step, trace, last.curve)

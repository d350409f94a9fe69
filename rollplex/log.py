"""Handing each step's numbers to sinks while the steps pass through untouched.

This file owns the step axis: one `write` a step and a sink, always with the step it belongs to. It does not know what
the numbers mean (`rollplex.metrics`) nor what a sink does with them.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from rollplex.metrics import metrics

if TYPE_CHECKING:
    from rollplex.step import Step
    from rollplex.steps import Steps
    from rollplex.trace import Trace


class Sink(Protocol):
    """A place that numbers go to."""

    def write(self, step: Step, metrics: Mapping[str, float], trace: Trace) -> None:
        """Take one step: its values, its numbers, and the trace of the run so far."""
        ...

    def close(self) -> None:
        """Finish; called when the loop ends, breaks or raises. Calling it again does nothing."""
        ...


def log(steps: Steps, *sinks: Sink) -> Steps:
    """The same steps; each one's numbers are written to every sink before the loop's body sees it.

    A sink that fails (a full disk, a lost connection) is named in a warning, closed and left out from then on; the
    training goes on. ::

        for step in log(run.steps(50), JsonLines("metrics.jsonl"), WandB()):
            ...
    """
    return steps.through(_Logged(steps, sinks))


@dataclass(eq=False)
class _Logged:
    # An iterable, not a generator: a for loop then holds the only reference to the generator, so that a break closes
    # the sinks at once even where the user keeps the `Steps`.
    steps: Steps
    sinks: tuple[Sink, ...]

    def __iter__(self) -> Iterator[Step]:
        working = list(self.sinks)
        trace = self.steps.run.trace
        try:
            for step in self.steps:
                values = metrics(step, trace)
                working = [sink for sink in working if _wrote(sink, step, values, trace)]
                yield step
        finally:
            for sink in working:
                _close(sink)


def _wrote(sink: Sink, step: Step, values: Mapping[str, float], trace: Trace) -> bool:
    try:
        sink.write(step, values, trace)
    except Exception as error:  # noqa: BLE001 - a sink is not worth a training run, whatever breaks in it
        _warn(f"logging step {step.index} to {sink!r}", error, "It gets no further steps; the training goes on.")
        _close(sink)
        return False
    return True


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except Exception as error:  # noqa: BLE001 - the other sinks still have to be closed
        _warn(f"closing {sink!r}", error, "What it had written before may be incomplete.")


def _warn(doing: str, error: Exception, then: str) -> None:
    warnings.warn(f"{doing}: {type(error).__name__}: {error}. {then}", RuntimeWarning, stacklevel=3)


class JsonLines:
    """A file with one JSON object a step, readable by ``pandas.read_json(path, lines=True)`` at any moment.

    Every line has ``step``, ``schedule`` (where the trace knows it) and the numbers. A number that is not finite is
    written as ``null``, so that each line is strict JSON. An existing file is continued unless ``append`` is False.
    """

    def __init__(self, path: str | Path, *, append: bool = True) -> None:
        self.path = Path(path)
        self._mode = "a" if append else "w"
        self._file: IO[str] | None = None

    def write(self, step: Step, metrics: Mapping[str, float], trace: Trace) -> None:
        """Add one line and flush it, so that a killed run keeps all but the step in progress."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open(self._mode, encoding="utf-8")
            self._mode = "a"
        line: dict[str, object] = {"step": step.index}
        if step.index in trace.schedules:
            line["schedule"] = trace.schedules[step.index]
        line |= {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; a later `write` continues it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __repr__(self) -> str:
        return f"JsonLines({str(self.path)!r})"

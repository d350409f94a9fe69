"""What bounds a step: the chain of ticks, each of which could not start before the one before it had ended."""

from __future__ import annotations

from bisect import bisect_right

from rollplex.trace import Tick, Trace


def critical_path(trace: Trace, step: int) -> list[Tick]:
    """Ticks from the step's end back to its beginning, last one first; where several ended in time, the longest.

    >>> from rollplex.trace import Tick, Trace
    >>> ticks = [Tick(0, "P1", "a", "decode", "0", 0.0, 2.0), Tick(0, "P1", "b", "prefix", "0", 0.0, 1.0)]
    >>> [tick.phase for tick in critical_path(Trace(ticks=ticks, schedules={0: "x"}), 0)]
    ['decode']
    """
    ticks = sorted(trace.of_step(step), key=lambda t: (t.end_s, t.end_s - t.start_s))
    ends = [tick.end_s for tick in ticks]
    path: list[Tick] = []
    index = len(ticks) - 1
    while index >= 0:
        path.append(ticks[index])
        before = bisect_right(ends, ticks[index].start_s + 1e-9) - 1
        index = min(before, index - 1)
    return path


def bounding_s(trace: Trace, step: int) -> dict[str, float]:
    """Phase -> seconds of the step that it bounds, longest first: what the step would be shorter by, up to the next chain.

    A phase that is not there is hidden: it ran beside what took longer.
    """
    totals: dict[str, float] = {}
    for tick in critical_path(trace, step):
        totals[tick.phase] = totals.get(tick.phase, 0.0) + tick.end_s - tick.start_s
    return dict(sorted(totals.items(), key=lambda item: -item[1]))

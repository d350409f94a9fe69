"""A trace as rows of few readable bars: what every drawing of a timeline starts from.

This file knows how ticks merge and where lanes idle. It does not know colours, pixels or Plotly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollplex.metrics import concurrent_s
from rollplex.trace import Tick, Trace

_INVISIBLE = 1 / 2000
"""A gap below this share of the width is narrower than a pixel: bars on both sides of it are drawn as one."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Ticks of one phase drawn as one bar, or a pause."""

    phase: str
    """Name of the phase; ``"idle"`` for a pause."""
    start_s: float
    """Start, in seconds since the chart's first tick."""
    end_s: float
    """End."""
    busy_s: float
    """Seconds of work inside the bar: its length less the gaps that were merged away."""
    num_ticks: int
    """Ticks that it stands for."""
    label: str
    """First label of its ticks, and the last one if it is another."""


@dataclass(frozen=True, slots=True)
class Row:
    """One lane."""

    lane: str
    """Its name."""
    bars: tuple[Bar, ...]
    """Its bars in order of time, pauses included."""
    busy_s: float
    """Seconds of work."""


@dataclass(frozen=True, slots=True)
class Stage:
    """From the first start to the last end of a stage of the timetable."""

    name: str
    """Its name."""
    start_s: float
    """Start, in seconds since the chart's first tick."""
    end_s: float
    """End."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lanes over time, ready to draw."""

    steps: tuple[int, ...]
    """Steps that it shows."""
    schedule: str
    """Name of their schedule; several are joined by commas."""
    source: str
    """``"measured on ..."`` or ``"predicted for ..."``."""
    overlap: str
    """What is true about lanes at work at the same time, as a sentence; empty with one lane."""
    origin_s: float
    """The chart's zero on the trace's clock."""
    span_s: float
    """Seconds from the first start to the last end."""
    rows: tuple[Row, ...]
    """Lanes in order of their first tick."""
    stages: tuple[Stage, ...]
    """Stages in order."""


def chart(trace: Trace, steps: Sequence[int] | None = None, *, max_bars: int = 1500) -> Chart:
    """The chart of some steps of a trace, of its last one unless they are named.

    Consecutive ticks of a phase on a lane become one bar. Where that leaves more than ``max_bars`` bars, wider and
    wider gaps are merged too until they fit; a bar's ``busy_s`` still tells the work inside it.

    >>> ticks = [Tick(0, "P1", "gpu", "decode", f"token {i}", i * 0.1, (i + 1) * 0.1) for i in range(1000)]
    >>> [(bar.phase, bar.num_ticks, bar.label) for bar in chart(Trace(ticks=ticks, schedules={0: "Serial"})).rows[0].bars]
    [('decode', 1000, 'token 0 … token 999')]
    """
    if steps is None:
        steps = sorted({t.step for t in trace.ticks})[-1:]
    part = trace.select(*steps)
    if not part.ticks:
        asked = f"step {', '.join(map(str, steps))}" if steps else "the last step"
        found = f"ticks of steps {sorted({t.step for t in trace.ticks})}" if trace.ticks else "no ticks"
        raise ValueError(f"drawing the timeline of {asked}: the trace has {found}. Run a step, or name one of these.")
    origin = min(t.start_s for t in part.ticks)
    span = max(t.end_s for t in part.ticks) - origin
    return Chart(
        steps=tuple(steps),
        schedule=", ".join(dict.fromkeys(part.schedules[i] for i in part.steps())),
        source=f"{part.kind} {'on' if part.kind == 'measured' else 'for'} {part.device}",
        overlap=_overlap(part, span),
        origin_s=origin,
        span_s=span,
        rows=_rows(part.ticks, origin, span, max_bars),
        stages=_stages(part.ticks, origin),
    )


def _overlap(part: Trace, span: float) -> str:
    if len({t.lane for t in part.ticks}) < 2:
        return ""
    together = concurrent_s(part)
    if together <= 1e-9 * span:
        return "lanes took turns: no two were at work at once"
    share = f"two or more lanes at work {together / span:.0%} of the time"
    if part.kind == "measured" and part.device.startswith("cpu"):
        return f"{share}; they share the same cores, which is not a GPU's overlap"
    return share


def _rows(ticks: Sequence[Tick], origin: float, span: float, max_bars: int) -> tuple[Row, ...]:
    lanes: dict[str, list[Tick]] = {}
    for tick in sorted(ticks, key=lambda t: t.start_s):
        lanes.setdefault(tick.lane, []).append(tick)
    gap = span * _INVISIBLE
    rows = _at_gap(lanes, origin, span, gap)
    while sum(len(row.bars) for row in rows) > max_bars and gap < span:
        gap *= 2
        rows = _at_gap(lanes, origin, span, gap)
    return rows


def _at_gap(lanes: dict[str, list[Tick]], origin: float, span: float, gap: float) -> tuple[Row, ...]:
    rows = []
    for lane, ticks in lanes.items():
        work = sorted(_merge(ticks, origin, gap), key=lambda bar: bar.start_s)
        bars = sorted([*work, *_pauses(work, span, gap)], key=lambda bar: bar.start_s)
        rows.append(Row(lane=lane, bars=tuple(bars), busy_s=sum(bar.busy_s for bar in work)))
    return tuple(rows)


def _merge(ticks: Iterable[Tick], origin: float, gap: float) -> list[Bar]:
    """Bars of each phase by itself: even where two phases alternate on a lane, a wide gap merges them to few."""
    runs: dict[str, list[list[Tick]]] = {}
    for tick in ticks:
        phase = runs.setdefault(tick.phase, [])
        if phase and tick.start_s - phase[-1][-1].end_s <= gap:
            phase[-1].append(tick)
        else:
            phase.append([tick])
    return [_bar(run, origin) for phase in runs.values() for run in phase]


def _bar(run: Sequence[Tick], origin: float) -> Bar:
    first, last = run[0], run[-1]
    return Bar(
        phase=first.phase,
        start_s=first.start_s - origin,
        end_s=max(t.end_s for t in run) - origin,
        busy_s=sum(t.end_s - t.start_s for t in run),
        num_ticks=len(run),
        label=first.label if first.label == last.label else f"{first.label} … {last.label}",
    )


def _pauses(work: Sequence[Bar], span: float, gap: float) -> list[Bar]:
    pauses, at = [], 0.0
    for start, end in [*((bar.start_s, bar.end_s) for bar in work), (span, span)]:
        if start - at > gap:
            pauses.append(Bar("idle", at, start, 0.0, 0, "idle"))
        at = max(at, end)
    return pauses


def _stages(ticks: Sequence[Tick], origin: float) -> tuple[Stage, ...]:
    found: dict[tuple[int, str], tuple[float, float]] = {}
    for tick in sorted(ticks, key=lambda t: t.start_s):
        start, end = found.get((tick.step, tick.stage), (tick.start_s, tick.end_s))
        found[tick.step, tick.stage] = (start, max(end, tick.end_s))
    return tuple(Stage(name, start - origin, end - origin) for (_, name), (start, end) in found.items())

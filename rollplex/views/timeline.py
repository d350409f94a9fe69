"""A trace as an interactive timeline: lanes down, time across, one colour a phase.

This file knows Plotly. How ticks become bars is `rollplex.views.chart`, which colours mean what is `palette`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from rollplex.trace import Trace
from rollplex.views.chart import Bar, Chart, chart
from rollplex.views.palette import ACCENT, GRID, INK, phase_color, phase_order
from rollplex.views.units import seconds, time_axis

_HOVER = "<b>%{fullData.name}</b><br>%{customdata[0]}<br>%{customdata[1]}<extra></extra>"


def timeline(trace: Trace, step: int | None = None, *, max_bars: int = 1500) -> go.Figure:
    """One step of a trace, the last unless named; the title says whether it was measured, and on what.

    >>> from rollplex.trace import Tick
    >>> ticks = [Tick(0, "P1", "gpu", "decode", "token 0", 0.0, 0.2), Tick(0, "P2", "gpu", "suffix", "0", 0.2, 0.5)]
    >>> [bars.name for bars in timeline(Trace(ticks=ticks, schedules={0: "Serial"})).data]
    ['decode', 'suffix']
    """
    part = chart(trace, None if step is None else [step], max_bars=max_bars)
    title = f"Step {part.steps[0]}" + (f" under {escape(part.schedule)}" if part.schedule else "")
    figure = _figure([("", part)])
    note = "; ".join(filter(None, (part.source, part.overlap)))
    return figure.update_layout(title=_title(f"{title}: {seconds(part.span_s)}", note))


def timelines(traces: Mapping[str, Trace], step: int | None = None, *, max_bars: int = 1500) -> go.Figure:
    """Several schedules one above the other on one time axis, each from the start of its own step.

    The step is each trace's last unless named. Where the traces do not come from one device, each says its own.
    """
    if not traces:
        raise ValueError("drawing timelines: no trace was given. Give a mapping of name to trace, at least one.")
    steps = None if step is None else [step]
    parts = [(name, chart(trace, steps, max_bars=max_bars // len(traces))) for name, trace in traces.items()]
    sources = list(dict.fromkeys(part.source for _, part in parts))
    return _figure(parts, tell_source=len(sources) > 1).update_layout(
        title=_title("One step under each schedule", "; ".join(sources))
    )


def bar_traces(placed: Sequence[tuple[float, Bar]], scale: float) -> list[go.Bar]:
    """One Plotly trace a phase, of bars that have been given a height each; times are multiplied by ``scale``."""
    phases = sorted({bar.phase for _, bar in placed}, key=phase_order)
    return [_bar_trace(phase, [(y, bar) for y, bar in placed if bar.phase == phase], scale) for phase in phases]


def _bar_trace(phase: str, placed: Sequence[tuple[float, Bar]], scale: float) -> go.Bar:
    return go.Bar(
        name=phase,
        orientation="h",
        base=[bar.start_s * scale for _, bar in placed],
        x=[(bar.end_s - bar.start_s) * scale for _, bar in placed],
        y=[y for y, _ in placed],
        width=0.78,
        customdata=[[escape(bar.label), _length(bar)] for _, bar in placed],
        hovertemplate=_HOVER,
        marker={"color": phase_color(phase), "line": {"width": 0}},
    )


def _length(bar: Bar) -> str:
    if bar.num_ticks < 2:
        return seconds(bar.end_s - bar.start_s)
    share = bar.busy_s / (bar.end_s - bar.start_s) if bar.end_s > bar.start_s else 1.0
    waited = "" if share > 0.995 else f", at work {share:.0%} of it"
    return f"{seconds(bar.end_s - bar.start_s)} in {bar.num_ticks} ticks{waited}"


def _figure(parts: Sequence[tuple[str, Chart]], *, tell_source: bool = False) -> go.Figure:
    span = max(part.span_s for _, part in parts)
    unit, scale = time_axis(span)
    placed: list[tuple[float, Bar]] = []
    labels: dict[float, str] = {}
    notes: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    y = 0.0
    for name, part in parts:
        if name:
            notes.append(_heading(name, part, y, tell_source))
            y += 0.8
        top = y
        for row in part.rows:
            placed += [(y, bar) for bar in row.bars]
            share = row.busy_s / part.span_s if part.span_s > 0 else 1.0
            labels[y] = f"{escape(row.lane)} <span style='font-size:10px'>{share:.0%}</span> "
            y += 1
        shapes += [_barrier(stage.start_s * scale, top, y) for stage in part.stages[1:]]
        if not name:
            notes += _stage_names(part, span, scale)
        y += 0.25
    figure = go.Figure(bar_traces(placed, scale))
    figure.update_layout(
        barmode="overlay",
        height=int(150 + 34 * y),
        shapes=shapes,
        annotations=notes,
        legend={"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "traceorder": "normal"},
        margin={"l": 20, "r": 20, "t": 84, "b": 76},
        **base_layout(),
    )
    figure.update_xaxes(
        title=f"time since the step began ({unit})", range=[0, span * scale], gridcolor=GRID, zeroline=False
    )
    figure.update_yaxes(
        tickvals=list(labels),
        ticktext=list(labels.values()),
        range=[y - 0.55, -0.7],
        showgrid=False,
        zeroline=False,
        automargin=True,
    )
    return figure


def base_layout() -> dict[str, Any]:
    """What every figure shares: a clear background and text that reads on white and on black."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 12},
        "hoverlabel": {"align": "left"},
        # No button that sends a figure to a server.
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)",
            "color": INK,
            "activecolor": ACCENT,
            "remove": ["sendChartToCloud", "lasso2d", "select2d"],
        },
    }


def _title(text: str, note: str) -> dict[str, Any]:
    return {"text": text, "subtitle": {"text": escape(note)}, "x": 0, "xref": "paper", "y": 0.97, "yanchor": "top"}


def _heading(name: str, part: Chart, y: float, tell_source: bool) -> dict[str, Any]:
    words = [seconds(part.span_s), *([part.source] if tell_source else []), *([part.overlap] if part.overlap else [])]
    text = f"<b>{escape(name)}</b>  {escape('; '.join(words))}"
    return {"x": 0, "xref": "paper", "xanchor": "left", "y": y, "text": text, "showarrow": False, "font": {"size": 12}}


def _barrier(x: float, top: float, bottom: float) -> dict[str, Any]:
    line = {"width": 1, "dash": "dot", "color": INK}
    return {"type": "line", "x0": x, "x1": x, "y0": top - 0.5, "y1": bottom - 0.5, "line": line}


def _stage_names(part: Chart, span: float, scale: float) -> list[dict[str, Any]]:
    # A name needs room: stages below a twentieth of the width go without.
    named = [stage for stage in part.stages if stage.end_s - stage.start_s > span / 20]
    place = {"yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": "left", "showarrow": False}
    return [{"x": s.start_s * scale, "text": escape(s.name), "font": {"size": 10}, **place} for s in named]

"""Bytes by owner over time, above the phases that were running.

This file draws what the trace's memory samples say. It does not measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from rollplex.trace import MemorySample, Trace
from rollplex.views.chart import Bar, chart
from rollplex.views.palette import BUDGET, GRID, owner_colors
from rollplex.views.timeline import bar_traces, base_layout
from rollplex.views.units import size, size_unit, time_axis


def memory(
    trace: Trace, step: int | None = None, budget_bytes: int | None = None, *, max_samples: int = 1000
) -> go.Figure:
    """Bytes by owner as stacked areas, for every step unless one is named, with the phases as bands below.

    Above ``max_samples`` samples each stretch of time is drawn by its fullest one, so that no peak is lost.

    >>> sample = MemorySample(0, 0.0, {"policy.weights": 2**20})
    >>> [area.name for area in memory(Trace(samples=[sample], schedules={0: "Serial"})).data]
    ['policy.weights']
    """
    part = trace if step is None else trace.select(step)
    if not part.samples:
        asked = "the memory" if step is None else f"the memory of step {step}"
        found = f"samples of steps {sorted({s.step for s in trace.samples})}" if trace.samples else "no memory samples"
        raise ValueError(
            f"drawing {asked}: the trace has {found}. Run a step that samples memory, or name one of these."
        )
    samples = fullest(sorted(part.samples, key=lambda s: s.time_s), max_samples)
    bands = chart(part, sorted({t.step for t in part.ticks})) if part.ticks else None
    origin = min(samples[0].time_s, bands.origin_s) if bands else samples[0].time_s
    end = max(samples[-1].time_s, bands.origin_s + bands.span_s) if bands else samples[-1].time_s
    unit, scale = time_axis(end - origin)
    peak = max(samples, key=_total)
    limit = max(_total(peak), budget_bytes or 0)
    figure = go.Figure(_areas(samples, origin, scale, end, *size_unit(limit)))
    if bands:
        shift = bands.origin_s - origin
        placed = [(float(y), _later(bar, shift)) for y, row in enumerate(bands.rows) for bar in row.bars]
        for bars in bar_traces([(y, bar) for y, bar in placed if bar.phase != "idle"], scale):
            figure.add_trace(bars.update(yaxis="y2", legend="legend2"))
        _draw_bands(figure, [row.lane for row in bands.rows])
    title = f"Memory by owner: peak {size(_total(peak))}" + (f" of {size(budget_bytes)}" if budget_bytes else "")
    _lay_out(
        figure, title, f"{part.kind} {'on' if part.kind == 'measured' else 'for'} {part.device}", size_unit(limit)[0]
    )
    figure.update_xaxes(title=f"time ({unit})", gridcolor=GRID, zeroline=False, range=[0, (end - origin) * scale or 1])
    if budget_bytes:
        height = budget_bytes / size_unit(limit)[1]
        figure.add_hline(y=height, line={"color": BUDGET, "dash": "dash", "width": 1.5}, annotation_text="budget")
    return figure


def fullest(samples: Sequence[MemorySample], at_most: int) -> list[MemorySample]:
    """Samples thinned to at most a number, each the fullest of its stretch.

    >>> [s.time_s for s in fullest([MemorySample(0, float(i), {"a": i % 7}) for i in range(14)], 2)]
    [6.0, 13.0]
    """
    stretch = -(-len(samples) // at_most)
    return [max(samples[i : i + stretch], key=_total) for i in range(0, len(samples), stretch)]


def _total(sample: MemorySample) -> int:
    return sum(sample.owners.values())


def _areas(
    samples: Sequence[MemorySample], origin: float, scale: float, end: float, unit: str, unit_bytes: float
) -> list[go.Scatter]:
    peaks: dict[str, int] = {}
    for sample in samples:
        for owner, num_bytes in sample.owners.items():
            peaks[owner] = max(peaks.get(owner, 0), num_bytes)
    # Owners that stay lie below, so that what comes and goes is seen as the upper edge.
    order = sorted(peaks, key=lambda owner: (-min(s.owners.get(owner, 0) for s in samples), -peaks[owner], owner))
    times = [(s.time_s - origin) * scale for s in samples] + [(end - origin) * scale]
    areas, colors = [], owner_colors(peaks)
    for owner in order:
        held = [s.owners.get(owner, 0) for s in samples]
        areas.append(
            go.Scatter(
                name=escape(owner),
                x=times,
                y=[num_bytes / unit_bytes for num_bytes in [*held, held[-1]]],
                stackgroup="memory",
                mode="lines",
                line={"shape": "hv", "width": 0.5, "color": colors[owner]},
                hovertemplate=f"<b>{escape(owner)}</b> %{{y:.3g}} {unit}<extra></extra>",
            )
        )
    return areas


def _later(bar: Bar, shift: float) -> Bar:
    return Bar(bar.phase, bar.start_s + shift, bar.end_s + shift, bar.busy_s, bar.num_ticks, bar.label)


def _draw_bands(figure: go.Figure, lanes: Sequence[str]) -> None:
    top = min(0.34, 0.07 * len(lanes) + 0.04)
    figure.update_layout(
        barmode="overlay",
        yaxis={"domain": [top + 0.05, 1]},
        yaxis2={
            "domain": [0, top],
            "tickvals": list(range(len(lanes))),
            "ticktext": [escape(lane) for lane in lanes],
            "range": [len(lanes) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        },
        xaxis={"anchor": "y2"},
    )


def _lay_out(figure: go.Figure, title: str, note: str, unit: str) -> None:
    figure.update_layout(
        title={"text": title, "subtitle": {"text": escape(note)}, "x": 0, "xref": "paper", "y": 0.97, "yanchor": "top"},
        height=480,
        hovermode="x unified",
        margin={"l": 20, "r": 20, "t": 84, "b": 90},
        legend={"orientation": "v", "y": 1, "yanchor": "top", "title": {"text": "owner"}},
        legend2={"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "traceorder": "normal"},
        **base_layout(),
    )
    figure.update_layout(
        yaxis={"title": unit, "gridcolor": GRID, "rangemode": "tozero", "zeroline": False, "automargin": True}
    )

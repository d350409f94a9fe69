"""Bytes by owner over time, above the phases that were running.

This file draws what the trace's memory samples say. It does not measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go

from rollplex.trace import MemorySample, Trace
from rollplex.views.chart import Bar, Chart, chart
from rollplex.views.palette import BUDGET, GRID, owner_colors
from rollplex.views.timeline import bar_traces, base_layout
from rollplex.views.units import size, size_unit, time_axis


def memory(
    trace: Trace, step: int | None = None, budget_bytes: int | None = None, *, max_samples: int = 1000
) -> go.Figure:
    """Bytes by owner as stacked areas, for every step unless one is named, with the phases as bands below.

    The trace's own budget is drawn unless another is given. Host memory, where samples tell of it, has a panel of its
    own. Above ``max_samples`` samples each stretch of time is drawn by its fullest one, so that no peak is lost.

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
    budget = part.budget_bytes if budget_bytes is None else budget_bytes
    samples = fullest(sorted(part.samples, key=lambda s: s.time_s), max_samples)
    bands = chart(part, sorted({t.step for t in part.ticks})) if part.ticks else None
    span = _Span.of(samples, bands)
    peak = max(_total(sample) for sample in samples)
    colors = owner_colors({owner for s in samples for owner in (*s.owners, *s.host)})
    unit, unit_bytes = size_unit(max(peak, budget or 0))
    figure = go.Figure(_areas([(s.time_s, s.owners) for s in samples], span, unit, unit_bytes, colors))
    lanes = [row.lane for row in bands.rows] if bands else []
    panels = _panels(len(lanes), host=any(s.host for s in samples))
    if bands:
        _draw_bands(figure, bands, span, panels["bands"], lanes)
    if budget:
        line = {"color": BUDGET, "dash": "dash", "width": 1.5}
        figure.add_hline(y=budget / unit_bytes, line=line, annotation_text="budget", yref="y")
    title = f"Memory by owner: peak {size(peak)}" + (f" of {size(budget)}" if budget else "")
    _lay_out(figure, title, f"{part.kind} {'on' if part.kind == 'measured' else 'for'} {part.device}", unit)
    figure.update_layout(yaxis={"domain": panels["device"]})
    if "host" in panels:
        _draw_host(figure, samples, span, panels["host"], colors)
    figure.update_xaxes(title=f"time ({span.unit})", gridcolor=GRID, zeroline=False, range=[0, span.length or 1])
    return figure


@dataclass(frozen=True)
class _Span:
    """The figure's stretch of time."""

    origin_s: float
    end_s: float

    @classmethod
    def of(cls, samples: Sequence[MemorySample], bands: Chart | None) -> _Span:
        first, last = samples[0].time_s, samples[-1].time_s
        if bands is None:
            return cls(first, last)
        return cls(min(first, bands.origin_s), max(last, bands.origin_s + bands.span_s))

    @property
    def unit(self) -> str:
        return time_axis(self.end_s - self.origin_s)[0]

    @property
    def scale(self) -> float:
        return time_axis(self.end_s - self.origin_s)[1]

    @property
    def length(self) -> float:
        return self.place(self.end_s)

    def place(self, time_s: float) -> float:
        """A moment on the figure's axis."""
        return (time_s - self.origin_s) * self.scale


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
    held: Sequence[tuple[float, Mapping[str, int]]],
    span: _Span,
    unit: str,
    unit_bytes: float,
    colors: Mapping[str, str],
) -> list[go.Scatter]:
    peaks: dict[str, int] = {}
    for _, owners in held:
        for owner, num_bytes in owners.items():
            peaks[owner] = max(peaks.get(owner, 0), num_bytes)
    # Owners that stay lie below, so that what comes and goes is seen as the upper edge.
    order = sorted(peaks, key=lambda owner: (-min(o.get(owner, 0) for _, o in held), -peaks[owner], owner))
    times = [*(span.place(time_s) for time_s, _ in held), span.length]
    areas = []
    for owner in order:
        heights = [owners.get(owner, 0) / unit_bytes for _, owners in held]
        areas.append(
            go.Scatter(
                name=escape(owner),
                x=times,
                y=[*heights, heights[-1]],
                stackgroup="memory",
                mode="lines",
                line={"shape": "hv", "width": 0.5, "color": colors[owner]},
                hovertemplate=f"<b>{escape(owner)}</b> %{{y:.3g}} {unit}<extra></extra>",
            )
        )
    return areas


def _panels(num_lanes: int, *, host: bool) -> dict[str, list[float]]:
    """Panel -> its stretch of the figure's height: the device above, the host below it, phases at the bottom."""
    top = min(0.34, 0.07 * num_lanes + 0.04) if num_lanes else -0.05
    if not host:
        return {"bands": [0, max(top, 0)], "device": [top + 0.05, 1]}
    low = top + 0.07
    high = low + 0.28 * (1 - low)
    return {"bands": [0, max(top, 0)], "host": [low, high], "device": [high + 0.07, 1]}


def _draw_bands(figure: go.Figure, bands: Chart, span: _Span, panel: list[float], lanes: Sequence[str]) -> None:
    shift = bands.origin_s - span.origin_s
    placed = [(float(y), _later(bar, shift)) for y, row in enumerate(bands.rows) for bar in row.bars]
    for bars in bar_traces([(y, bar) for y, bar in placed if bar.phase != "idle"], span.scale):
        figure.add_trace(bars.update(yaxis="y2", legend="legend2"))
    figure.update_layout(
        barmode="overlay",
        yaxis2={
            "domain": panel,
            "tickvals": list(range(len(lanes))),
            "ticktext": [escape(lane) for lane in lanes],
            "range": [len(lanes) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
        },
        xaxis={"anchor": "y2"},
    )


def _draw_host(
    figure: go.Figure, samples: Sequence[MemorySample], span: _Span, panel: list[float], colors: Mapping[str, str]
) -> None:
    unit, unit_bytes = size_unit(max(sum(s.host.values()) for s in samples))
    shown = {escape(owner) for s in samples for owner in s.owners}
    for area in _areas([(s.time_s, s.host) for s in samples], span, unit, unit_bytes, colors):
        # An owner that was on the device too has its entry, and its colour, already.
        figure.add_trace(area.update(yaxis="y3", stackgroup="host", showlegend=area.name not in shown))
    figure.update_layout(
        height=560,
        yaxis3={
            "domain": panel,
            "title": f"host, {unit}",
            "gridcolor": GRID,
            "rangemode": "tozero",
            "zeroline": False,
            "automargin": True,
        },
    )


def _later(bar: Bar, shift: float) -> Bar:
    return Bar(bar.phase, bar.start_s + shift, bar.end_s + shift, bar.busy_s, bar.num_ticks, bar.label)


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

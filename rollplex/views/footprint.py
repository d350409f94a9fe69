"""What a step weighs on one device: everything at once beside the peaks of managed stages, against the budget.

This file draws a footprint. It adds up nothing that is not in the table.
"""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from rollplex.memory.footprint import Footprint
from rollplex.memory.managed import POLICIES, Residency, peaks
from rollplex.views.palette import BUDGET, GRID, series_color
from rollplex.views.timeline import base_layout


def footprint(table: Footprint, residency: Residency = POLICIES[0]) -> go.Figure:
    """Stacked bars: naive overlap, then the peak of each stage.

    >>> from rollplex.memory.footprint import footprint as weigh
    >>> figure = footprint(weigh("Qwen2.5-VL-32B"))
    >>> figure.data[0].x
    ('all at once<br>167.9', 'P1<br>73.1', 'P2<br>61.1', 'P3<br>31.6')
    """
    bars = {"all at once": _naive(table)}
    bars |= {peak.stage: dict(peak.objects) for peak in peaks(table, residency)}
    names = dict.fromkeys(name for bar in bars.values() for name, gib in bar.items() if gib >= 0.05)
    labels = [f"{stage}<br>{sum(bar.values()):.1f}" for stage, bar in bars.items()]
    figure = go.Figure(
        [
            go.Bar(
                name=escape(name),
                x=labels,
                y=[bar.get(name, 0.0) for bar in bars.values()],
                marker={"color": series_color(index)},
                hovertemplate=f"<b>{escape(name)}</b> %{{y:.2f}} GiB<extra></extra>",
            )
            for index, name in enumerate(names)
        ]
    )
    device = table.assumptions.device_gib
    figure.add_hline(y=device, line={"color": BUDGET, "dash": "dash", "width": 1.5}, annotation_text="device")
    title = f"{escape(table.model.name)}: {table.total_gib:.0f} GiB at once, {_highest(bars):.0f} GiB {residency.name}"
    figure.update_yaxes(title="GiB on one device", gridcolor=GRID, zeroline=False)
    return figure.update_layout(**base_layout(), barmode="stack", title={"text": title, "x": 0, "xref": "paper"})


def _naive(table: Footprint) -> dict[str, float]:
    """The rows under the names that the contracts have for them."""
    renamed = {
        "weights": "trainer's own weights",
        "boundary KV": "actor boundary KV",
        "rollout weights": "actor weights",
        "activations": "prefix activations",
    }
    state = "master weights and Adam moments"
    held: dict[str, float] = {}
    for row in table.rows:
        name = state if row.item in ("master weights", "Adam moments") else renamed.get(row.item, row.item)
        held[name] = held.get(name, 0.0) + row.gib
    return held


def _highest(bars: dict[str, dict[str, float]]) -> float:
    return max(sum(bar.values()) for stage, bar in bars.items() if stage != "all at once")

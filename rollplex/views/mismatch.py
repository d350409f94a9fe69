"""The traffic light of engine and trainer: one line for a step, one curve for a run. It draws; it decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from rollplex.mismatch import FAULT, FINE, Light, Mismatch
from rollplex.views.html import Html
from rollplex.views.palette import ACCENT, BUDGET, GRID
from rollplex.views.timeline import base_layout

COLORS: dict[Light, str] = {"green": "#2a9d78", "amber": "#e8a11e", "red": BUDGET}
"""Readable on white and on black."""

LEAST = 1e-9
"""Bottom of the curve's axis; equal probabilities are drawn there."""


def light(found: Mismatch) -> Html:
    """A step's light and its numbers.

    >>> "#2a9d78" in light(Mismatch(mean=1e-7, max=1e-6)).text
    True
    """
    dot = f'<span style="color:{COLORS[found.light]}">&#9679;</span>'
    return Html(f'<div style="font:12px system-ui,sans-serif">{dot} {found.words}</div>')


def mismatches(found: Sequence[Mismatch]) -> go.Figure:
    """Mean and largest difference step by step, with the two thresholds.

    >>> mismatches([Mismatch(mean=1e-7, max=1e-6), Mismatch(mean=0.02, max=0.5)]).layout.title.text
    'engine and trainer: 1 green, 1 red'
    """
    steps = list(range(len(found)))
    figure = go.Figure(
        [
            go.Scatter(
                x=steps,
                y=[max(m.mean, LEAST) for m in found],
                name="mean",
                line={"color": ACCENT},
                marker={"color": [COLORS[m.light] for m in found], "size": 7},
                mode="lines+markers",
            ),
            go.Scatter(
                x=steps, y=[max(m.max, LEAST) for m in found], name="largest", line={"color": ACCENT, "dash": "dot"}
            ),
        ]
    )
    for threshold, color in ((FINE, COLORS["amber"]), (FAULT, COLORS["red"])):
        figure.add_hline(
            y=threshold, line={"color": color, "dash": "dash", "width": 1.5}, annotation_text=f"{threshold:g}"
        )
    figure.update_xaxes(title="step", gridcolor=GRID)
    figure.update_yaxes(title="difference of probabilities", type="log", gridcolor=GRID)
    return figure.update_layout(**base_layout(), title={"text": _title(found), "x": 0, "xref": "paper"})


def _title(found: Sequence[Mismatch]) -> str:
    counts = {name: sum(m.light == name for m in found) for name in COLORS}
    return "engine and trainer: " + ", ".join(f"{num} {name}" for name, num in counts.items() if num)

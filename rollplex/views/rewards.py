"""Reward over steps, for one run or for several seeds.

This file draws curves. It does not know what a reward is made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

import plotly.graph_objects as go

from rollplex.views.palette import GRID, series_color
from rollplex.views.timeline import base_layout


def rewards(curves: Mapping[str, Sequence[float]], *, window: int = 5, title: str = "Reward") -> go.Figure:
    """One curve a name: each step's mean as a point, its running mean over ``window`` steps as a line.

    Steps without a score (NaN) leave a gap in the points and are skipped by the running mean.

    >>> figure = rewards({"seed 0": [0.0, 1.0, float("nan"), 1.0]}, window=2)
    >>> list(figure.data[1].y)
    [0.0, 0.5, 1.0, 1.0]
    """
    if window < 1:
        raise ValueError(f"drawing rewards: window is {window}. Give at least 1 step (1 draws the points' own line).")
    figure = go.Figure()
    for index, (name, values) in enumerate(curves.items()):
        color, steps = series_color(index), list(range(len(values)))
        points = [None if math.isnan(value) else value for value in values]
        hover = f"<b>{escape(name)}</b> step %{{x}}: %{{y:.3f}}<extra></extra>"
        same = {"name": escape(name), "legendgroup": name, "x": steps}
        marks = {"color": color, "size": 5, "opacity": 0.35}
        figure.add_trace(
            go.Scatter(y=points, mode="markers", marker=marks, showlegend=False, hovertemplate=hover, **same)
        )
        line = {"color": color, "width": 2.5}
        figure.add_trace(go.Scatter(y=running_mean(values, window), mode="lines", line=line, hoverinfo="skip", **same))
    figure.update_layout(
        title={"text": escape(title), "x": 0, "xref": "paper", "y": 0.97, "yanchor": "top"},
        height=340,
        showlegend=len(curves) > 1,
        margin={"l": 20, "r": 20, "t": 50, "b": 50},
        **base_layout(),
    )
    figure.update_xaxes(title="step", gridcolor=GRID, zeroline=False)
    figure.update_yaxes(title="mean reward", gridcolor=GRID, zeroline=False, automargin=True)
    return figure


def running_mean(values: Sequence[float], window: int) -> list[float | None]:
    """Mean of the last ``window`` values at each place; None where they are all NaN.

    >>> running_mean([1.0, 3.0, float("nan")], 1)
    [1.0, 3.0, None]
    """
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        found = [value for value in values[max(0, end - window) : end] if not math.isnan(value)]
        means.append(fmean(found) if found else None)
    return means

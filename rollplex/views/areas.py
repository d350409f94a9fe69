"""Areas within areas: a treemap whose sizes are told in bytes.

It knows areas and how they are drawn. It does not know what they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import plotly.graph_objects as go

from rollplex.views.timeline import base_layout
from rollplex.views.units import size


@dataclass(frozen=True, kw_only=True)
class Area:
    """One area; those inside it name it as their parent."""

    id: str
    """What others call it."""
    label: str
    """What is written on it."""
    parent: str
    """The area that it lies in; empty for the outermost."""
    value: int
    """How large it is drawn; with areas inside, their sum."""
    nbytes: int
    """What it stands for."""
    color: str
    """Its filling."""
    note: str = ""
    """What the pointer is told besides."""


def treemap(areas: Sequence[Area], *, title: str | dict[str, Any], top: int) -> go.Figure:
    """The areas as a figure, with ``top`` pixels for the title.

    >>> treemap([Area(id="m", label="model", parent="", value=2, nbytes=8, color="#888")], title="", top=8).data[0].values
    (2,)
    """
    figure = go.Figure(
        go.Treemap(
            ids=[area.id for area in areas],
            labels=[escape(area.label) for area in areas],
            parents=[area.parent for area in areas],
            values=[area.value for area in areas],
            branchvalues="total",
            marker={"colors": [area.color for area in areas]},
            customdata=[[size(area.nbytes), escape(area.note)] for area in areas],
            hovertemplate="<b>%{label}</b> %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        )
    )
    return figure.update_layout(**base_layout(), title=title, margin={"t": top, "l": 8, "r": 8, "b": 8})

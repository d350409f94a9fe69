"""Tables and figures of the reproduction: the paper's number, ours, and the error, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollplex.handoff import Point as HandoffPoint
from rollplex.paper import published, rollmux
from rollplex.paper.cluster32 import Comparison
from rollplex.paper.table2 import Cell

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go


def table2_frame(cells: Sequence[Cell]) -> pandas.DataFrame:
    """Table 2: for each policy and data set, published seconds, predicted seconds and the error.

    >>> from rollplex.paper.table2 import cells
    >>> len(table2_frame(cells()))
    9
    """
    import pandas

    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        text = f"{cell.published_s:.1f} / {cell.predicted_s:.1f} ({cell.predicted_s / cell.published_s - 1:+.0%})"
        rows.setdefault(cell.policy, {})[cell.dataset] = text
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("published / predicted s (error)")


def table2_figure(cells: Sequence[Cell]) -> go.Figure:
    """Predicted against published seconds; on the line they agree."""
    import plotly.graph_objects as go

    made = go.Figure()
    for role in ("given", "calibration", "predicted"):
        mine = [cell for cell in cells if cell.role == role]
        made.add_scatter(
            x=[cell.published_s for cell in mine],
            y=[cell.predicted_s for cell in mine],
            text=[f"{cell.policy}, {cell.dataset}" for cell in mine],
            mode="markers",
            name=role,
        )
    ends = [30, 270]
    made.add_scatter(x=ends, y=ends, mode="lines", line={"dash": "dot", "color": "gray"}, name="equal")
    made.update_xaxes(type="log", title="published step, s")
    return made.update_yaxes(type="log", title="predicted step, s").update_layout(
        title="Table 2: published, and predicted by the simulator"
    )


def cluster_frame(compared: Sequence[Comparison]) -> pandas.DataFrame:
    """The 32-GPU ratios with the published ranges as the first row."""
    import pandas

    ranges = {
        "to colocation": published.VERSUS_COLOCATE,
        "to disaggregation": published.VERSUS_DISAGGREGATED,
        "rollout, TP 8 over 4 (not CLEVRER)": published.WIDER_ROLLOUT_SLOWDOWN,
        "step, TP 8 over 4 (not CLEVRER)": published.WIDER_STEP_SLOWDOWN,
        "on partial rollout": published.ON_PARTIAL,
        "on oversampling": published.ON_OVERSAMPLING,
    }
    rows = {"published range": {name: f"{low}-{high}" for name, (low, high) in ranges.items()}}
    for c in compared:
        values = (
            c.versus_colocate, c.versus_disaggregated, c.wider_rollout, c.wider_step, c.on_partial, c.on_oversampling
        )  # fmt: skip
        rows[f"{c.dataset}, simulated"] = {name: f"{v:.2f}" for name, v in zip(ranges, values, strict=True)}
    return pandas.DataFrame.from_dict(rows, orient="index")


def rollmux_figure(points: Sequence[rollmux.Point]) -> go.Figure:
    """Cost efficiency over disaggregation against balance, one line a condition, the published value dotted."""
    import plotly.graph_objects as go

    made = go.Figure()
    for key in dict.fromkeys((point.switch_share, point.spread) for point in points):
        mine = [point for point in points if (point.switch_share, point.spread) == key]
        made.add_scatter(
            x=[point.rollout_share for point in mine],
            y=[point.ratio for point in mine],
            name=f"switch {key[0]:.0%} of a step, spread {key[1]}",
        )
    made.add_hline(y=rollmux.PUBLISHED, line_dash="dot", annotation_text="published, on its own trace")
    return made.update_layout(
        title="Two jobs on two pools, simulated",
        xaxis_title="rollout's share of a job's step",
        yaxis_title="simulated cost efficiency over disaggregation",
    )


def handoff_frame(points: Sequence[HandoffPoint]) -> pandas.DataFrame:
    """Rollplex's simulated step over OnePrefill's: rows are prompts and responses, columns models and degrees."""
    import pandas

    rows = [
        {
            "prompt": p.prompt_tokens,
            "response": p.response_tokens,
            "where": f"{p.model}, TP {p.train_tp}/{p.rollout_tp}",
            "gain": round(p.gain, 3),
        }
        for p in points
    ]
    table = pandas.DataFrame(rows).pivot_table(index=["prompt", "response"], columns="where", values="gain")
    return table.rename_axis(columns="simulated gain")

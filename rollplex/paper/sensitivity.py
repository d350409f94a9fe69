"""How far each assumption of the 32-GPU comparison can move, alone, before a main ratio leaves its published range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollplex.paper import published
from rollplex.paper.cluster32 import ASSUMPTIONS, Assumptions, Comparison, main_ratios

if TYPE_CHECKING:
    import plotly.graph_objects as go

FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.7, 2.0)
"""What an assumption is multiplied by."""
UNTOUCHED = ("over",)
"""Assumptions that the two main ratios do not depend on."""
AT_MOST_ONE = ("prefix_efficiency", "train_efficiency", "memory_efficiency", "visual_share")
"""Shares: a factor that would lift one above 1 is left out."""
AT_LEAST_ONE = ("compute_stretch", "decode_slowdown")
"""Factors on time: below 1 they would be speedups, and are left out."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """How far one assumption can move."""

    name: str
    """Which."""
    value: float
    """Where it is."""
    low: float
    """Smallest factor, down from 1, at which every main ratio of every data set is still in range."""
    high: float
    """Largest factor, up from 1."""
    first_out: str
    """What leaves first beyond that, if anything did."""
    curves: dict[str, list[float]]
    """Data set -> simulated ratio to colocation at each tried factor."""
    factors: list[float]
    """The tried factors."""


def sensitivity(assumptions: Assumptions = ASSUMPTIONS, factors: Sequence[float] = FACTORS) -> list[Range]:
    """One range for each assumption."""
    return [_range(name, assumptions, factors) for name in assumptions.values() if name not in UNTOUCHED]


def _range(name: str, assumptions: Assumptions, factors: Sequence[float]) -> Range:
    value = assumptions.values()[name]
    tried = [
        f
        for f in sorted({*factors, 1.0})
        if not (name in AT_MOST_ONE and value * f > 1) and not (name in AT_LEAST_ONE and value * f < 1)
    ]
    results = [main_ratios(assumptions.moved(name, factor)) for factor in tried]
    outs = [_out(result) for result in results]
    one = tried.index(1.0)
    low = high = one
    while low > 0 and not outs[low - 1]:
        low -= 1
    while high < len(tried) - 1 and not outs[high + 1]:
        high += 1
    beyond = [outs[i][0] for i in (low - 1, high + 1) if 0 <= i < len(outs) and outs[i]]
    return Range(
        name=name,
        value=value,
        low=tried[low],
        high=tried[high],
        first_out="; ".join(beyond),
        curves={r.dataset: [result[i].versus_colocate for result in results] for i, r in enumerate(results[0])},
        factors=tried,
    )


def _out(ratios: Sequence[Comparison]) -> list[str]:
    found: list[str] = []
    for ratio in ratios:
        for what, value, (low, high) in (
            ("colocation", ratio.versus_colocate, published.VERSUS_COLOCATE),
            ("disaggregation", ratio.versus_disaggregated, published.VERSUS_DISAGGREGATED),
        ):
            if value < low or value > high:
                found.append(f"{ratio.dataset} to {what} {value:.3f}")
    return found


def figure(ranges: Sequence[Range]) -> go.Figure:
    """The ranges as bars on a logarithmic axis of factors, 1 in the middle."""
    import plotly.graph_objects as go

    ordered = sorted(ranges, key=lambda r: r.high / r.low, reverse=True)
    bars = go.Bar(
        orientation="h",
        y=[f"{r.name} = {r.value:g}" for r in ordered],
        base=[r.low for r in ordered],
        x=[max(r.high - r.low, 0.01) for r in ordered],
        customdata=[r.first_out for r in ordered],
        hovertemplate="%{y}: x%{base:.2f} to x%{x:.2f}<br>beyond: %{customdata}<extra></extra>",
    )
    made = go.Figure(bars)
    made.add_vline(x=1.0, line_dash="dot")
    return made.update_layout(
        title="How far each assumption can move before a simulated ratio leaves the published range",
        xaxis={"type": "log", "title": "factor on the assumption"},
        showlegend=False,
    )

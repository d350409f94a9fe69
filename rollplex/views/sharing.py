"""Which bytes trainer and engine hold as one copy: a table and areas by module, with the cost of two copies beside it.

This file draws an `Inspection`. It looks at no address.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from rollplex.engines.engine import Engine
from rollplex.policy import Policy
from rollplex.sharing.bind import Binding
from rollplex.sharing.inspection import STATES, Inspection, Share, State, inspect, inspect_binding
from rollplex.views.areas import Area, treemap
from rollplex.views.coverage import kind
from rollplex.views.palette import BUDGET, IDLE, INK, series_color
from rollplex.views.units import size

if TYPE_CHECKING:
    import pandas

COLORS: dict[State, str] = {
    "shared": series_color(0),
    "transposed": series_color(3),
    "copied": BUDGET,
    "unmatched": INK,
}
"""As in the figure of a plan: shared, shared as its transpose, copied; grey for what has no partner."""


def sharing(policy: Policy | Binding, engine: Engine | None = None) -> SharingView:
    """What an engine shares with a policy, or what a training rank shares with the shard on its device.

    >>> from rollplex.policy import Policy
    >>> policy = Policy.tiny()
    >>> sharing(policy, policy.engine())
    SharingView(100.0% one copy: 9.62 MiB held, 19.2 MiB with a copy each)
    """
    if isinstance(policy, Binding):
        return SharingView(inspect_binding(policy))
    if engine is None:
        raise ValueError("looking at what a policy shares: no engine was given. Call sharing(policy, engine).")
    return SharingView(inspect(policy, engine))


@dataclass(frozen=True)
class SharingView:
    """An inspection to look at: displays as a table, ``treemap()`` is the figure, ``frame()`` has every parameter."""

    inspection: Inspection
    """What was found."""

    def frame(self) -> pandas.DataFrame:
        """Every parameter: name, module, state, nbytes, note."""
        import pandas

        rows = [(s.name, s.module, s.state, s.nbytes, s.note) for s in self.inspection.shares]
        return pandas.DataFrame(rows, columns=["name", "module", "state", "nbytes", "note"])

    def by_module(self) -> pandas.DataFrame:
        """Bytes in each state by kind of module, layers added up."""
        import pandas

        return pandas.DataFrame.from_dict(self._table, orient="index", columns=list(STATES))

    @property
    def _table(self) -> dict[str, dict[State, int]]:
        table: dict[str, dict[State, int]] = {}
        for share in self.inspection.shares:
            table.setdefault(_group(share), dict.fromkeys(STATES, 0))[share.state] += share.nbytes
        return table

    def treemap(self) -> go.Figure:
        """Areas by part of the model and kind of parameter, coloured by state."""
        groups: dict[tuple[str, str, State], list[Share]] = {}
        for share in self.inspection.shares:
            groups.setdefault((_part(share), kind(share.name), share.state), []).append(share)
        areas = []
        for part in dict.fromkeys(part for part, _, _ in groups):
            num = sum(s.nbytes for (owner, _, _), shares in groups.items() if owner == part for s in shares)
            areas.append(Area(id=part, label=part, parent="model", value=num, nbytes=num, color=IDLE))
        whole = sum(area.value for area in areas)
        areas.insert(0, Area(id="model", label="model", parent="", value=whole, nbytes=whole, color=IDLE))
        for (part, name, state), shares in groups.items():
            num = sum(s.nbytes for s in shares)
            note = f"{state}, {len(shares)} tensors. {shares[0].note}".rstrip()
            areas.append(
                Area(
                    id=f"{part}/{name}/{state}",
                    label=name,
                    parent=part,
                    value=num,
                    nbytes=num,
                    color=COLORS[state],
                    note=note,
                )
            )
        title = {"text": self._title, "subtitle": {"text": self._cost}, "x": 0, "xref": "paper"}
        title |= {"y": 0.97, "yanchor": "top"}
        return treemap(areas, title=title, top=80)

    @property
    def _title(self) -> str:
        return f"{self.inspection.shared_share:.1%} one copy"

    @property
    def _cost(self) -> str:
        return f"{size(self.inspection.held_bytes)} held, {size(self.inspection.naive_bytes)} with a copy each"

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="color:{COLORS[state]};text-align:right">{state}</th>' for state in STATES)
        lines = []
        for name, row in self._table.items():
            cells = "".join(f'<td style="text-align:right">{size(row[s]) if row[s] else "–"}</td>' for s in STATES)
            lines.append(f'<tr><td style="text-align:left">{escape(name)}</td>{cells}</tr>')
        total = "".join(
            f'<td style="text-align:right"><b>{size(num) if num else "–"}</b></td>'
            for num in map(self.inspection.nbytes, STATES)
        )
        return (
            f'<div style="font:13px system-ui,sans-serif"><b>{self._title}</b>: {self._cost}'
            f"<table><tr><th></th>{head}</tr>{''.join(lines)}<tr><td><b>all</b></td>{total}</tr></table></div>"
        )

    def __repr__(self) -> str:
        return f"SharingView({self._title}: {self._cost})"


def _part(share: Share) -> str:
    """``visual``, ``language_model``, ``lm_head`` or ``engine``."""
    names = share.name.split(".")
    return names[1] if names[0] == "model" and len(names) > 2 else names[0]


def _group(share: Share) -> str:
    """A module without its layer: ``language_model: self_attn.q_proj``."""
    return f"{_part(share)}: {kind(share.name).rpartition('.')[0] or share.name}"

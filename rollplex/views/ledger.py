"""A ledger as a table with bars: owners on the device, what nobody owns, and the host's pool below.

This file draws. Whose a byte is, it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from rollplex.memory.ledger import Ledger
from rollplex.views.html import Html
from rollplex.views.palette import IDLE, owner_colors
from rollplex.views.units import size


def ledger(table: Ledger) -> Html:
    """The table; bars are shares of the budget, or of what is allocated."""
    colors = owner_colors([*table.owners, *table.host])
    whole = table.budget_bytes or table.allocated.nbytes
    rows = [_row(name, num, whole, colors[name], _readers(table, name)) for name, num in table.owners.items()]
    rows.append(_row("unattributed", table.unattributed_bytes, whole, IDLE, "allocated, and nobody's"))
    rows += [_sum(name, num) for name, num in _sums(table).items()]
    parts = [f"<b>On {escape(table.device)}</b>", _table(rows)]
    if table.pool_bytes is not None:
        pool = table.pool_bytes
        held = [_row(name, num, pool, colors[name], "") for name, num in table.host.items()]
        parts += [
            f"<b>In host memory</b>, of a pool of {size(pool)}",
            _table([*held, _sum("free", pool - sum(table.host.values()))]),
        ]
    return Html(f'<div style="font:12px system-ui,sans-serif">{"".join(parts)}</div>')


def _sums(table: Ledger) -> Mapping[str, int]:
    sums: dict[str, int | None] = {
        "allocated": table.allocated.nbytes,
        "budget": table.budget_bytes,
        "cached by torch": table.allocated.cached_bytes or None,
        "the whole process": table.allocated.process_bytes,
    }
    return {name: num for name, num in sums.items() if num is not None}


def _readers(table: Ledger, owner: str) -> str:
    """Who else reads an owner's bytes."""
    readers = [name for name, others in table.shared.items() if owner in others]
    return f"and {', '.join(readers)}: the same bytes" if readers else ""


def _row(name: str, num: int, whole: int, color: str, note: str) -> str:
    share = min(max(num / whole, 0.0), 1.0) if whole else 0.0
    bar = f'<div style="height:9px;border-radius:2px;width:{share:.1%};background:{color}"></div>'
    amount = size(num) if num >= 0 else f"−{size(-num)}"
    return (
        f'<tr><td>{escape(name)}</td><td style="width:180px">{bar}</td>'
        f'<td style="text-align:right">{amount}</td><td style="opacity:.7">{escape(note)}</td></tr>'
    )


def _sum(name: str, num: int) -> str:
    return f'<tr style="opacity:.7"><td>{escape(name)}</td><td></td><td style="text-align:right">{size(num)}</td><td></td></tr>'


def _table(rows: list[str]) -> str:
    return f'<table style="font:inherit;margin:.3em 0 .8em">{"".join(rows)}</table>'

"""A full device as a table: who holds it, what did not fit, and what could be elsewhere.

This file draws an explanation. It does not find it.
"""

from __future__ import annotations

from html import escape

from rollplex.memory.explanation import Explanation, Option
from rollplex.views.html import Html
from rollplex.views.palette import BUDGET, owner_colors
from rollplex.views.units import size


def explanation(told: Explanation) -> Html:
    """Bars up to the budget and beyond it, then the options."""
    whole = sum(told.owners.values()) + told.nbytes
    colors = owner_colors(told.owners)
    rows = [_bar(owner, num, whole, colors[owner]) for owner, num in told.owners.items()]
    rows.append(_bar(f"{told.owner}, to admit", told.nbytes, whole, BUDGET))
    head = (
        f"<b>{escape(told.owner)} does not fit</b>: {size(told.missing_bytes)} more than the budget of "
        f"{size(told.budget_bytes)}"
    )
    table = f'<table style="font:inherit;margin:.3em 0 .8em">{"".join(rows)}</table>'
    return Html(f'<div style="font:12px system-ui,sans-serif">{head}{table}{_options(told)}</div>')


def _options(told: Explanation) -> str:
    if not told.options:
        return "None of it may be elsewhere now: a larger budget or a smaller batch is needed."
    items = "".join(f"<li>{_line(option)}</li>" for option in told.options)
    words = "<b>May be elsewhere</b>"
    if told.fewest is None:
        words += ", but all of it together is not enough: a larger budget or a smaller batch is needed"
    elif len(told.fewest) > 1:
        words += f"; enough together: {escape(', '.join(option.owner for option in told.fewest))}"
    return f'{words}<ul style="margin:.3em 0">{items}</ul>'


def _line(option: Option) -> str:
    enough = f", <b>{option.verdict}</b>" if option.verdict else ""
    return f"{escape(option.owner)}, {size(option.nbytes)}: {option.away}{enough}. {escape(option.how)}"


def _bar(name: str, num: int, whole: int, color: str) -> str:
    bar = f'<div style="height:9px;border-radius:2px;width:{num / whole:.1%};background:{color}"></div>'
    return f'<tr><td>{escape(name)}</td><td style="width:180px">{bar}</td><td style="text-align:right">{size(num)}</td></tr>'

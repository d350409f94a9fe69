"""A report: one HTML file with everything in it, which opens from disk without a network.

This file knows pages. What stands in its sections is made by the other views or by the caller.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from rollplex.step import Step
from rollplex.views.html import Html
from rollplex.views.rollouts import rollouts
from rollplex.views.svg import Svg
from rollplex.views.units import digits

Content = go.Figure | Html | Svg


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, what is shown, and what it means."""

    heading: str
    """Plain text."""
    contents: tuple[Content, ...]
    """Shown one below the other."""
    caption: str = ""
    """Plain text under the heading: what was measured, on which device, and what it does not show."""


def figures(heading: str, *shown: Content, caption: str = "") -> Section:
    """A section of figures."""
    return Section(heading=heading, contents=shown, caption=caption)


def table(heading: str, rows: Sequence[Mapping[str, object]], *, caption: str = "") -> Section:
    """A section with one table: a row a mapping, columns in the order in which they first appear.

    Numbers are shown with three significant digits and stand right; a missing value is a dash.

    >>> "<td class='number'>0.123</td>" in table("Results", [{"seed": "0", "accuracy": 0.12345}]).contents[0].text
    True
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numeric = {c for c in columns if all(isinstance(row[c], int | float) for row in rows if row.get(c) is not None)}
    head = "".join(f"<th{_css(c in numeric)}>{escape(c)}</th>" for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_css(c in numeric)}>{_cell(row.get(c))}</td>" for c in columns) + "</tr>" for row in rows
    )
    shown = Html(f"<div class='scroll'><table class='results'><tr>{head}</tr>{body}</table></div>")
    return Section(heading=heading, contents=(shown,), caption=caption)


def groups(heading: str, steps: Iterable[Step], *, prompts: int = 1, caption: str = "") -> Section:
    """A section with the first groups of rollouts of each of some steps, pictures included."""
    shown = [rollouts(s, g.prompt) for s in steps if s.rollout for g in s.rollout.groups[:prompts]]
    return Section(heading=heading, contents=tuple(shown), caption=caption)


def report(path: str | Path, *, title: str, sections: Sequence[Section], lead: str = "") -> Path:
    """Write the sections as one self-contained page and return where it is.

    Plotly's JavaScript is written into the page once, and only if a section has a Plotly figure.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(title=title, sections=sections, lead=lead), encoding="utf-8")
    return path


def page(*, title: str, sections: Sequence[Section], lead: str = "") -> str:
    """The page as text.

    >>> page(title="A <run>", sections=[]).count("A &lt;run&gt;")
    2
    """
    numbers = itertools.count(1)
    body = "".join(_section(section, numbers) for section in sections)
    interactive = any(isinstance(content, go.Figure) for section in sections for content in section.contents)
    script = f"<script>{get_plotlyjs()}</script>" if interactive else ""
    links = "".join(f'<a href="#{_anchor(s.heading)}">{escape(s.heading)}</a>' for s in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<style>{_STYLE}</style>{script}</head><body><main><header><h1>{escape(title)}</h1>"
        + (f'<p class="lead">{escape(lead)}</p>' if lead else "")
        + (f"<nav>{links}</nav>" if len(sections) > 2 else "")
        + f"</header>{body}</main></body></html>\n"
    )


def _section(section: Section, numbers: Iterable[int]) -> str:
    shown = "".join(f'<div class="shown">{_content(content, numbers)}</div>' for content in section.contents)
    caption = f'<p class="caption">{escape(section.caption)}</p>' if section.caption else ""
    return f'<section id="{_anchor(section.heading)}"><h2>{escape(section.heading)}</h2>{caption}{shown}</section>'


def _content(content: Content, numbers: Iterable[int]) -> str:
    if not isinstance(content, go.Figure):
        return content.text
    # Ids that count up, not random ones: the same run gives the same file.
    return to_html(
        content,
        full_html=False,
        include_plotlyjs=False,
        div_id=f"figure-{next(iter(numbers))}",
        config={"displaylogo": False, "responsive": True, "showSendToCloud": False},
    )


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return escape(str(value))
    if isinstance(value, int):
        return f"{value}"
    return digits(value) if isinstance(value, float) else escape(str(value))


def _css(numeric: bool) -> str:
    return " class='number'" if numeric else ""


def _anchor(heading: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in heading.lower()).split())


_STYLE = """
:root{--ink:#1f2430;--soft:#5b6472;--rule:#dfe3e8;--page:#fbfbfa;--card:#fff;--link:#2b62b5}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#a2a9b4;--rule:#333a45;--page:#14171c;--card:#1b1f26;--link:#8ab4f8}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:62rem;margin:0 auto;padding:3rem 1.25rem 5rem}
h1{font-size:2rem;line-height:1.2;margin:0 0 .5rem;letter-spacing:-.015em}
h2{font-size:1.25rem;margin:0 0 .25rem;letter-spacing:-.01em}
.lead{font-size:1.1rem;color:var(--soft);max-width:46rem;margin:.25rem 0 1rem}
.caption{color:var(--soft);max-width:46rem;margin:.1rem 0 1rem;font-size:.95rem}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;font-size:.95rem}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:1.5rem;margin-top:1.5rem}
.shown+.shown{margin-top:1.5rem}.scroll{overflow-x:auto}
table.results{border-collapse:collapse;width:100%;font-size:.9rem}
table.results th{font-weight:600;color:var(--soft);text-align:left;padding:.3rem .9rem .3rem 0;border-bottom:2px solid var(--rule)}
table.results td{padding:.4rem .9rem .4rem 0;border-bottom:1px solid var(--rule)}
table.results tr:last-child td{border-bottom:0}
table.results .number{text-align:right;font-variant-numeric:tabular-nums}
.shown>svg{fill:var(--soft)}
.js-plotly-plot .main-svg text{fill:var(--soft)!important}
.js-plotly-plot .main-svg .gtitle{fill:var(--ink)!important}
.js-plotly-plot .main-svg .hoverlayer text{fill:#fff!important}
@media print{section{break-inside:avoid}body{background:#fff}}
"""

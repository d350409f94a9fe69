"""The box that a notebook shows while a run goes on, and the still picture that stays when it ends.

This file knows ipywidgets and IPython's display. What it shows comes from the other views, as HTML and SVG: a Plotly
widget would bring 5 MB of JavaScript into every saved notebook, and half a second of work into the first step. The
interactive figures are one call away, ``run.trace.timeline()``. Nothing here may stop a run: `rollplex.views.watch`
catches what goes wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import ipywidgets
from IPython.display import DisplayHandle, display

from rollplex.mismatch import mismatch
from rollplex.step import Step
from rollplex.trace import Trace
from rollplex.views.html import Html
from rollplex.views.mismatch import light
from rollplex.views.palette import owner_colors
from rollplex.views.rollouts import rollouts
from rollplex.views.svg import curve_svg, timeline_svg
from rollplex.views.units import size


class Live:
    """Progress, timeline of the last step, reward curve, memory by owner and one group, in one cell."""

    def __init__(self, num: int) -> None:
        self._bar = ipywidgets.IntProgress(max=num, layout={"width": "100%", "height": "12px"})
        self._words, self._problem, self._view = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        self.box = ipywidgets.VBox([self._words, self._bar, self._problem, self._view])
        self._handle: DisplayHandle | None = display(self.box, display_id=True)

    def progress(self, done: int, words: str) -> None:
        """Move the bar; cheap enough for every step."""
        self._bar.value = done
        self._words.value = _line(words)

    def draw(self, step: Step, trace: Trace, curve: Sequence[float]) -> None:
        """Show a step."""
        self._view.value = still(step, trace, curve).text

    def problem(self, text: str) -> None:
        """Show what went wrong in the view itself."""
        self._problem.value = f'<pre style="color:#d1495b;white-space:pre-wrap">{escape(text)}</pre>'

    def finish(self, words: str, step: Step | None, trace: Trace, curve: Sequence[float]) -> None:
        """Put a still picture in the box's place and end its widgets, which show nothing in a closed notebook."""
        shown = still(step, trace, curve).text if step is not None else ""
        if self._handle is not None:
            self._handle.update(Html(_line(words) + self._problem.value + shown))
        for widget in (self._bar, self._words, self._problem, self._view, self.box):
            widget.close()


def still(step: Step, trace: Trace, curve: Sequence[float]) -> Html:
    """A step as a page piece without JavaScript: timeline, reward curve so far, memory by owner, one group."""
    parts = []
    if any(tick.step == step.index for tick in trace.ticks):
        parts.append(timeline_svg(trace, step.index).text)
    found = mismatch(step)
    if found is not None:
        parts.append(light(found).text)
    left = curve_svg(curve, label="reward").text if any(map(math.isfinite, curve)) else ""
    parts.append(
        '<div style="display:flex;flex-wrap:wrap;gap:1em 3em;margin:1em 0">'
        f"<div>{left}</div><div>{memory_bars(trace, step.index).text}</div></div>"
    )
    if step.rollout is not None and step.rollout.groups:
        parts.append(rollouts(step, step.rollout.groups[0].prompt, max_responses=8).text)
    return Html("".join(parts))


def memory_bars(trace: Trace, step: int) -> Html:
    """Each owner's most bytes in a step as a bar, the largest first; nothing where memory was not sampled."""
    peaks: dict[str, int] = {}
    for sample in trace.select(step).samples:
        for owner, num_bytes in sample.owners.items():
            peaks[owner] = max(peaks.get(owner, 0), num_bytes)
    return _bars(peaks) if peaks else Html("")


def _bars(peaks: Mapping[str, int]) -> Html:
    top, colors = max(peaks.values()) or 1, owner_colors(peaks)
    lines = []
    for owner, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        bar = f'<div style="height:9px;border-radius:2px;width:{peak / top:.1%};background:{colors[owner]}"></div>'
        cells = (f"<td>{escape(owner)}</td>", f'<td style="width:180px">{bar}</td>', f"<td>{size(peak)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = "<b>Memory by owner</b>, most in the step"
    table = f'<table style="font:inherit">{"".join(lines)}</table>'
    return Html(f'<div style="font:12px system-ui,sans-serif">{head}{table}</div>')


def _line(words: str) -> str:
    return f'<div style="font:13px system-ui,sans-serif;white-space:pre">{escape(words)}</div>'

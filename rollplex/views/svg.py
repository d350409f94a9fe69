"""Timelines and curves as plain SVG, for places that run no JavaScript: a README, a saved notebook, a mail.

This file draws a `Chart` with rectangles and text. It needs nothing but the standard library to do so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rollplex.trace import Trace
from rollplex.views.chart import Bar, Chart, chart
from rollplex.views.palette import ACCENT, GRID, INK, phase_color, phase_order
from rollplex.views.units import digits, seconds, time_axis

_ROW, _HEAD, _LEFT, _RIGHT = 26, 24, 132, 16
_MAX_BARS = 600


@dataclass(frozen=True)
class Svg:
    """An SVG picture that displays as itself and can be saved."""

    text: str
    """The SVG element."""

    def save(self, path: str | Path) -> Path:
        """Write it to a file."""
        path = Path(path)
        path.write_text(self.text, encoding="utf-8")
        return path

    def _repr_svg_(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Svg({len(self.text)} characters)"


def timeline_svg(trace: Trace, step: int | None = None, *, width: int = 900) -> Svg:
    """One step of a trace, the last unless named, as `timeline` shows it but still.

    >>> from rollplex.trace import Tick
    >>> ticks = [Tick(0, "P1", "gpu", "decode", "token 0", 0.0, 0.2)]
    >>> timeline_svg(Trace(ticks=ticks, schedules={0: "Serial"})).text[:4]
    '<svg'
    """
    part = chart(trace, None if step is None else [step], max_bars=_MAX_BARS)
    name = f"Step {part.steps[0]}" + (f" under {part.schedule}" if part.schedule else "")
    return _draw([(name, part)], width)


def timelines_svg(traces: Mapping[str, Trace], step: int | None = None, *, width: int = 900) -> Svg:
    """Several schedules one above the other on one time axis, as `timelines` shows them but still."""
    if not traces:
        raise ValueError("drawing timelines: no trace was given. Give a mapping of name to trace, at least one.")
    steps = None if step is None else [step]
    share = _MAX_BARS // len(traces)
    return _draw([(name, chart(trace, steps, max_bars=share)) for name, trace in traces.items()], width)


def curve_svg(values: Sequence[float], *, label: str, width: int = 420, height: int = 120) -> Svg:
    """A curve over steps with its first, last and extreme values told; values that are not finite leave a gap.

    >>> "0.25" in curve_svg([0.0, 0.25], label="reward").text
    True
    """
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = (high - low) or 1.0
    across = (width - 60) / max(1, len(values) - 1)
    places = [
        f"{50 + i * across:.1f},{height - 22 - (value - low) / room * (height - 48):.1f}"
        for i, value in enumerate(values)
        if math.isfinite(value)
    ]
    words = f"{label}: {digits(known[-1])} (first {digits(known[0])})" if known else f"{label}: no value yet"
    parts = [_text(0, 14, words, weight=600)]
    if known:
        parts += [_text(44, 30, digits(high), anchor="end"), _text(44, height - 20, digits(low), anchor="end")]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{ACCENT}" stroke-width="2"/>')
        x, y = places[-1].split(",")
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{ACCENT}"/>')
    return _svg(width, height, label, parts)


def _draw(parts: Sequence[tuple[str, Chart]], width: int) -> Svg:
    span = max(part.span_s for _, part in parts) or 1.0
    per_second = (width - _LEFT - _RIGHT) / span
    body: list[str] = []
    y = 4.0
    for name, part in parts:
        words = [seconds(part.span_s), part.source, *([part.overlap] if part.overlap else [])]
        head = f'<tspan font-weight="600">{escape(name)}</tspan>  {escape("; ".join(words))}'
        body.append(f'<text x="0" y="{y + 15:.0f}">{head}</text>')
        y += _HEAD
        top = y
        for row in part.rows:
            body.append(_text(_LEFT - 8, y + 17, row.lane, anchor="end"))
            body += [_rectangle(bar, y, per_second) for bar in row.bars]
            y += _ROW
        for stage in part.stages[1:]:
            x = _LEFT + stage.start_s * per_second
            body.append(f'<path d="M{x:.1f} {top:.0f}V{y:.0f}" stroke="{INK}" stroke-dasharray="2 3"/>')
        y += 10
    body += _axis(span, per_second, y)
    y += 34
    body += _legend({bar.phase for _, part in parts for row in part.rows for bar in row.bars}, y, width)
    title = ", ".join(name for name, _ in parts)
    return _svg(width, y + 24, f"Timeline: {title}", body)


def _rectangle(bar: Bar, y: float, per_second: float) -> str:
    left, wide = _LEFT + bar.start_s * per_second, max(0.4, (bar.end_s - bar.start_s) * per_second)
    said = escape(f"{bar.phase}: {bar.label}, {seconds(bar.end_s - bar.start_s)}")
    place = f'x="{left:.2f}" y="{y + 2:.0f}" width="{wide:.2f}" height="{_ROW - 5}"'
    return f'<rect {place} fill="{phase_color(bar.phase)}"><title>{said}</title></rect>'


def _axis(span: float, per_second: float, y: float) -> list[str]:
    unit, scale = time_axis(span)
    stride = _round_stride(span * scale / 6)
    marks = [i * stride for i in range(int(span * scale / stride) + 1)]
    right = _LEFT + span * per_second
    parts = [f'<path d="M{_LEFT} {y:.0f}H{right:.1f}" stroke="{GRID}"/>']
    for mark in marks:
        x = _LEFT + mark / scale * per_second
        said = f"{digits(mark)} {unit}" if mark == marks[-1] else digits(mark)
        parts.append(f'<path d="M{x:.1f} {y:.0f}v4" stroke="{INK}"/>' + _text(x, y + 17, said, anchor="middle"))
    return parts


def _round_stride(wanted: float) -> float:
    power = 10 ** math.floor(math.log10(wanted))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= wanted)


def _legend(phases: set[str], y: float, width: int) -> list[str]:
    parts, x = [], float(_LEFT)
    for phase in sorted(phases, key=phase_order):
        if x + 26 + 7 * len(phase) > width and x > _LEFT:
            break
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="12" height="12" rx="2" fill="{phase_color(phase)}"/>')
        parts.append(_text(x + 17, y + 10, phase))
        x += 36 + 7 * len(phase)
    return parts


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: int = 400) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> Svg:
    # INK reads on white and on black, so the picture needs no background of its own.
    return Svg(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{escape(label)}" font-family="system-ui,sans-serif" font-size="12" fill="{INK}" '
        f'style="max-width:100%;height:auto" fill-opacity="1">{"".join(parts)}</svg>'
    )

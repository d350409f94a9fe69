"""Numbers as people read them. This file knows units and rounding, and nothing of what is measured."""

from __future__ import annotations

import math


def seconds(value: float) -> str:
    """A duration with three significant digits and a fitting unit.

    >>> seconds(83.4), seconds(1.239), seconds(0.01234), seconds(4.2e-5), seconds(0.0)
    ('83.4 s', '1.24 s', '12.3 ms', '42 µs', '0 s')
    """
    if value == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(value) * scale >= 1 or unit == "µs":
            break
    return f"{digits(value * scale)} {unit}"


def time_axis(span_s: float) -> tuple[str, float]:
    """Unit of a time axis that is ``span_s`` long, and its ticks in a second.

    >>> time_axis(0.25), time_axis(90.0)
    (('ms', 1000.0), ('s', 1.0))
    """
    return ("ms", 1e3) if span_s < 1 else ("s", 1.0)


def size(num_bytes: float) -> str:
    """A number of bytes with three significant digits and a binary unit.

    >>> size(512), size(3 * 2**20), size(79.5 * 2**30)
    ('512 B', '3 MiB', '79.5 GiB')
    """
    name, scale = size_unit(num_bytes)
    return f"{digits(num_bytes / scale)} {name}"


def size_unit(num_bytes: float) -> tuple[str, float]:
    """The largest binary unit that a number of bytes has at least one of, and its bytes.

    >>> size_unit(5 * 2**20)
    ('MiB', 1048576)
    """
    for name, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if num_bytes >= 2**power:
            return name, 2**power
    return "B", 1


def digits(value: float) -> str:
    """Three significant digits; in exponent form below a ten-thousandth, where zeros would have to be counted.

    >>> digits(1234.5), digits(0.98765), digits(7.0), digits(0.0001), digits(2.785e-07), digits(float("nan"))
    ('1234', '0.988', '7', '0.0001', '2.79e-07', '–')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock(value: float) -> str:
    """A longer duration as a clock shows it.

    >>> clock(8.4), clock(75), clock(3723)
    ('8 s', '1:15', '1:02:03')
    """
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"

"""The colours, the same in every view: a phase or an owner that is blue once is blue everywhere.

This file knows names and colours. It does not draw.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from rollplex.metrics import phase_family

IDLE = "rgba(128,134,145,0.16)"
"""A lane at rest; readable on white and on black."""
INK = "#6b7280"
"""Text of figures; readable on white and on black."""
GRID = "rgba(128,134,145,0.25)"
"""Grid lines and rules."""
ACCENT = "#3b7dd8"
"""The one line that matters."""
BUDGET = "#d1495b"
"""A limit."""

_PHASES = {
    "decode": "#3b7dd8",
    "prefix": "#e8871e",
    "prefix(policy)": "#e8871e",
    "prefix(reference)": "#f3bd6b",
    "reward": "#2a9d78",
    "suffix": "#8457c7",
    "update": "#d1495b",
    "idle": IDLE,
}

_SPARE = ("#0f8b9d", "#b8578f", "#8a9a2c", "#a8693a", "#5f7fa8", "#c9a227", "#6b8f71", "#9c6ade")

_OWNERS = ("#5f7fa8", "#c9a227", "#0f8b9d", "#b8578f", "#8a9a2c", "#a8693a", "#7d6fb3", "#5a9e6f", "#c96f5b", "#6a8fd0")
"""Not the phases' colours: where both are in one figure they are told apart."""


def phase_color(phase: str) -> str:
    """The colour of a phase by its name, else of its kind, else one fixed by the name.

    >>> phase_color("prefix(critic)") == phase_color("prefix"), phase_color("rerank") == phase_color("rerank")
    (True, True)
    """
    return _PHASES.get(phase) or _PHASES.get(phase_family(phase)) or _spare(phase)


def phase_order(phase: str) -> tuple[int, str]:
    """Sort key that puts phases in the order of a step, unknown ones after them and idle last."""
    known = [name for name in _PHASES if name != "idle"]
    if phase == "idle":
        return len(known) + 1, phase
    return known.index(phase) if phase in known else len(known), phase


def series_color(index: int) -> str:
    """The colour of the ``index``-th of several curves, cycling.

    >>> series_color(0) == ACCENT, series_color(0) == series_color(13)
    (True, True)
    """
    wheel = (*(_PHASES[name] for name in ("decode", "prefix", "suffix", "reward", "update")), *_SPARE)
    return wheel[index % len(wheel)]


def owner_colors(owners: Iterable[str]) -> dict[str, str]:
    """A colour for each owner of memory, all different while there are enough; one set of owners, one result.

    >>> colors = owner_colors(["policy.weights", "rollout.kv"])
    >>> colors == owner_colors(["rollout.kv", "policy.weights"]), len(set(colors.values()))
    (True, 2)
    """
    colors: dict[str, str] = {}
    for owner in sorted(owners):
        start = zlib.crc32(owner.encode()) % len(_OWNERS)
        wheel = [*_OWNERS[start:], *_OWNERS[:start]]
        colors[owner] = next((color for color in wheel if color not in colors.values()), wheel[0])
    return colors


def _spare(name: str) -> str:
    # crc32, not hash(): the colour must be the same in the next process.
    return _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]

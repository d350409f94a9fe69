"""Run every check and control, and say what was found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, get_args

import torch
from tqdm import tqdm

from rollplex.verify import engine, schedules, split
from rollplex.verify.check import Check, Control

TAPES = len(get_args(split.TapePolicy))
NUM = len(split.cases.CASES) * len(split.GROUPS) * TAPES * 2 + 1 + 2 + 2 + len(schedules.AGREEING) + 1 + 4


def verify() -> dict[str, Any]:
    """Check the exact split, the schedules' agreement and the engine's log-probs against plain computations.

    About two minutes on two cores. Returns ``{"checks": [...], "controls": [...], "passed": bool}``; ``passed`` needs
    every check within its limit and every deliberate fault noticed.
    """
    found = list(tqdm(results(), total=NUM, desc="verify", unit="check"))
    checks = [item for item in found if isinstance(item, Check)]
    controls = [item for item in found if isinstance(item, Control)]
    print(report(checks, controls))
    return {
        "checks": [
            {"name": c.name, "case": c.case, "value": c.value, "limit": c.limit, "passed": c.passed} for c in checks
        ],
        "controls": [{"name": c.name, "caught": c.caught} for c in controls],
        "passed": all(c.passed for c in checks) and all(c.caught for c in controls),
        "torch": torch.__version__,
    }


def results() -> Iterator[Check | Control]:
    """Checks and controls as they are made."""
    return chain(split.checks(split.Bench.make()), schedules.checks(), engine.checks())


def report(checks: list[Check], controls: list[Control]) -> str:
    """Worst value of each kind of check, and each control, as text."""
    lines = []
    for name in dict.fromkeys(c.name for c in checks):
        of_kind = [c for c in checks if c.name == name]
        worst = max(of_kind, key=lambda c: c.value / c.limit if c.limit else c.value)
        state = "ok" if all(c.passed for c in of_kind) else "FAILED"
        lines.append(
            f"{state:>6}  {name}: worst {worst.value:.2e} of {worst.limit:g} ({worst.case}; {len(of_kind)} cases)"
        )
    lines += [f"{'caught' if c.caught else 'MISSED':>6}  control: {c.name}" for c in controls]
    return "\n".join(lines)

"""The footprint as a command: a table in words, and a document of plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from rollplex.memory.footprint import Assumptions, Footprint, footprint
from rollplex.memory.managed import POLICIES, Peak, peaks

SWITCHES = tuple(field.name.replace("_", "-") for field in fields(Assumptions) if field.default is False)
"""Assumptions that a word of the command line turns on."""


def plan(
    model: str = "Qwen2.5-VL-32B", train_tp: int = 8, rollout_tp: int = 4, assume: Sequence[str] = ()
) -> dict[str, Any]:
    """Print and return what a published model's step weighs on one device, naive and managed."""
    unknown = sorted(set(assume) - set(SWITCHES))
    if unknown:
        raise ValueError(f"planning a footprint: no assumption {unknown}; choose from {', '.join(SWITCHES)}")
    assumptions = Assumptions(**{word.replace("-", "_"): True for word in assume})
    table = footprint(model, train_tp=train_tp, rollout_tp=rollout_tp, assumptions=assumptions)
    managed = {policy.name: peaks(table, policy) for policy in POLICIES}
    print(text(table, managed))
    return document(table, managed)


def document(table: Footprint, managed: dict[str, tuple[Peak, ...]]) -> dict[str, Any]:
    """The table with the keys of the command's JSON."""
    first = managed[POLICIES[0].name][0]
    return {
        "kind": "derived",
        "model": table.model.name,
        "train_tp": table.train_tp,
        "rollout_tp": table.rollout_tp,
        "assumptions": asdict(table.assumptions),
        "rows": [asdict(row) for row in table.rows],
        "total_gib": table.total_gib,
        "paper_total_gib": table.paper_total_gib,
        "managed_peak_gib": first.gib,
        "managed_peak_derivation": first.derivation,
        "policies": [
            {
                "name": name,
                "peaks_gib": {peak.stage: peak.gib for peak in stages},
                "fits": max(peak.gib for peak in stages) <= table.assumptions.device_gib,
            }
            for name, stages in managed.items()
        ],
    }


def text(table: Footprint, managed: dict[str, tuple[Peak, ...]]) -> str:
    """The table in words."""
    lines = [
        f"{table.model.name}, training TP {table.train_tp} over rollout TP {table.rollout_tp}: GiB on one device",
        f"  {'role':15} {'item':22} {'GiB':>7} {'paper':>7}  derivation",
    ]
    for row in table.rows:
        published = "" if row.paper_gib is None else f"{row.paper_gib:.1f}"
        lines.append(f"  {row.role:15} {row.item:22} {row.gib:7.2f} {published:>7}  {row.derivation}")
    published = "" if table.paper_total_gib is None else f"{table.paper_total_gib:.0f}"
    lines.append(f"  {'':15} {'all at once':22} {table.total_gib:7.2f} {published:>7}")
    device = table.assumptions.device_gib
    lines.append(f"\n  {'policy':24} {'P1':>7} {'P2':>7} {'P3':>7}   on {device:g} GiB")
    for name, stages in managed.items():
        over = [peak.stage for peak in stages if peak.gib > device]
        sizes = " ".join(f"{peak.gib:7.2f}" for peak in stages)
        lines.append(f"  {name:24} {sizes}   {'too much in ' + ', '.join(over) if over else 'fits'}")
    lines += [f"  {peak.stage} managed: {peak.derivation}" for peak in managed[POLICIES[0].name]]
    return "\n".join(lines)

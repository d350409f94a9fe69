"""Advice on a live run: what other schedules would do with its measured costs, here and on another device.

Measured rates are the run's own. On a named device they are scaled by its peaks over those of the device that was
measured: arithmetic by FLOP/s, decoding by bandwidth. Launch overheads do not scale so, and small models are full of them:
the advice says which of its assumptions moves the answer most. Every time in it is predicted, but for the measured ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from rollplex.costs.costs import Costs, Scaled
from rollplex.costs.geometry import Geometry
from rollplex.costs.measured import Measured
from rollplex.costs.observed import observed
from rollplex.costs.workload import Draw
from rollplex.hardware import DEVICES, Device, find_device, this_cpu
from rollplex.interference import ONE_PROCESSOR, Interference
from rollplex.scenario import layout
from rollplex.schedule import Schedule, Timetable
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed
from rollplex.simulate import Job, simulate
from rollplex.trace import Trace

if TYPE_CHECKING:
    import pandas

SCHEDULES: tuple[Schedule, ...] = (Serial(), Rollplex(), OnePrefill(), Streamed())
SERIAL = Serial().name
CO_RUNNING = Interference(name="assumed", decode_slowdown=1.05, compute_stretch=1.5, source="an assumption, see advice")
HALF_AS_LARGE_AGAIN = 1.5
"""What an assumption is multiplied by, to see what moves with it."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Predicted step times of schedules on two devices."""

    here: str
    """The device that was measured."""
    there: str
    """The named one."""
    step_s: dict[str, tuple[float, float]]
    """Schedule -> predicted seconds of a step here and there."""
    measured_s: dict[str, float] = field(default_factory=dict)
    """Schedule -> mean measured seconds of the steps that were made under it: to hold the prediction against."""
    matters: dict[str, float]
    """Assumption -> how far the best schedule's advantage over `Serial` there moves if it is half as large again, largest
    first. Where `Serial` is the best, the advantage of the next best."""

    def best(self, *, here: bool = False) -> str:
        """The schedule that is predicted to be fastest there, or here."""
        return min(self.step_s, key=lambda name: self.step_s[name][0 if here else 1])

    def frame(self) -> pandas.DataFrame:
        """As a table of seconds."""
        import pandas

        here, there = f"here ({self.here})", f"there ({self.there})"
        rows = [
            {
                "schedule": name,
                f"{here}, measured s": self.measured_s.get(name, float("nan")),
                f"{here}, predicted s": a,
                f"{there}, predicted s": b,
            }
            for name, (a, b) in self.step_s.items()
        ]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        return (
            f"Advice(predicted: here {self.best(here=True)}, on {self.there} {self.best()}; what matters most: "
            f"{next(iter(self.matters))})"
        )


def advise(
    trace: Trace,
    draws: Sequence[Draw],
    geometry: Geometry,
    *,
    device: str | Device = "H100",
    measured_on: Device | None = None,
    interference: Interference = CO_RUNNING,
) -> Advice:
    """What each schedule would do, from a few measured steps.

    ``draws`` are the lengths of those steps (`rollplex.costs.measured.draw_of`); ``measured_on`` is this processor, or the
    table's device of the trace's name, unless given.
    """
    target = find_device(device)
    source = _source(trace) if measured_on is None else measured_on
    costs = Measured.from_trace(trace, draws, geometry)
    compute = target.flops / source.flops
    memory = target.memory_bytes_per_s / source.memory_bytes_per_s
    there = costs.on(compute=compute, memory=memory)
    local = ONE_PROCESSOR if trace.device.startswith("cpu") else interference
    tables = {s.name: layout(s, reference=costs.reference) for s in SCHEDULES}
    return Advice(
        here=trace.device,
        there=target.name,
        step_s={
            name: (_step(costs, table, draws, local), _step(there, table, draws, interference))
            for name, table in tables.items()
        },
        measured_s=_measured_s(trace, draws),
        matters=_matters(there, tables, draws, interference),
    )


def _source(trace: Trace) -> Device:
    """The device that a trace was measured on: a GPU by a word of its name, ``"NVIDIA H100 80GB HBM3"``."""
    if trace.device.startswith("cpu"):
        return this_cpu()
    named = [DEVICES[word] for word in re.split(r"[^A-Za-z0-9]+", trace.device) if word in DEVICES]
    if not named:
        raise ValueError(
            f"advising from steps on {trace.device!r}: its peaks are not known, which are those of {', '.join(DEVICES)}. "
            "Pass measured_on=rx.Device(...)."
        )
    return named[0]


def _measured_s(trace: Trace, draws: Sequence[Draw]) -> dict[str, float]:
    """Schedule -> mean seconds of the steps that costs were taken from."""
    seconds: dict[str, list[float]] = {}
    for step in observed(trace, draws):
        (index,) = step.trace.steps()
        seconds.setdefault(trace.schedules[index], []).append(step.trace.step_s(index))
    return {name: fmean(each) for name, each in seconds.items()}


def _step(costs: Costs, table: Timetable, draws: Sequence[Draw], interference: Interference) -> float:
    return fmean(
        simulate(Job(timetable=table, costs=costs, workload=[draw]), interference=interference).step_s()
        for draw in draws
    )


def _matters(
    costs: Measured, tables: dict[str, Timetable], draws: Sequence[Draw], interference: Interference
) -> dict[str, float]:
    """Move each assumption and see how far the advantage of the best schedule but `Serial` moves."""

    def times(costs: Costs, interference: Interference, *names: str) -> list[float]:
        return [_step(costs, tables[name], draws, interference) for name in names]

    others = [name for name in tables if name != SERIAL]
    best = min(others, key=dict(zip(others, times(costs, interference, *others), strict=True)).__getitem__)
    factor = HALF_AS_LARGE_AGAIN
    slower = replace(interference, decode_slowdown=factor * interference.decode_slowdown)
    stretched = replace(interference, compute_stretch=factor * interference.compute_stretch)
    moved: dict[str, tuple[Costs, Interference]] = {
        "decode time": (Scaled(costs, {"rollout": factor}), interference),
        "suffix time": (Scaled(costs, {"suffix": factor}), interference),
        "prefix time": (Scaled(costs, {"policy_prefix": factor, "reference_prefix": factor}), interference),
        "stretch of compute beside decode": (costs, stretched),
        "slowdown of decode": (costs, slower),
    }
    serial, fast = times(costs, interference, SERIAL, best)
    shifts: dict[str, float] = {}
    for what, (changed, felt) in moved.items():
        one, other = times(changed, felt, SERIAL, best)
        shifts[what] = abs(one / other - serial / fast)
    return dict(sorted(shifts.items(), key=lambda item: -item[1]))

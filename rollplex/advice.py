"""Advice on a live run: what other schedules would do with its measured costs, here and on another device.

Measured rates are the run's own. On a named device they are scaled by its peaks over those of the device that was
measured: arithmetic by FLOP/s, decoding by bandwidth. Launch overheads do not scale so, and small models are full of them:
the advice says which of its assumptions moves the answer most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from rollplex.costs.costs import Costs, Scaled
from rollplex.costs.geometry import Geometry
from rollplex.costs.measured import Measured
from rollplex.costs.workload import Draw
from rollplex.hardware import DEVICES, Device, this_cpu
from rollplex.interference import ONE_PROCESSOR, Interference
from rollplex.scenario import layout
from rollplex.schedule import Schedule
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed
from rollplex.simulate import Job, simulate
from rollplex.trace import Trace

if TYPE_CHECKING:
    import pandas

SCHEDULES: tuple[Schedule, ...] = (Serial(), Rollplex(), OnePrefill(), Streamed())
CO_RUNNING = Interference(name="assumed", decode_slowdown=1.05, compute_stretch=1.5, source="an assumption, see advice")


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Predicted step times of schedules on two devices."""

    here: str
    """The device that was measured."""
    there: str
    """The named one."""
    step_s: dict[str, tuple[float, float]]
    """Schedule -> seconds of a step here and there."""
    matters: dict[str, float]
    """Assumption -> how far the best schedule's advantage over Serial there moves if it is off by half, largest first."""

    def best(self, *, here: bool = False) -> str:
        """The fastest schedule there, or here."""
        return min(self.step_s, key=lambda name: self.step_s[name][0 if here else 1])

    def frame(self) -> pandas.DataFrame:
        """As a table."""
        import pandas

        rows = [{"schedule": name, self.here: a, self.there: b} for name, (a, b) in self.step_s.items()]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        most = next(iter(self.matters), "nothing")
        return f"Advice(here {self.best(here=True)}, on {self.there} {self.best()}; what matters most: {most})"


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

    ``draws`` are the lengths of those steps (`rollplex.costs.measured.draw_of`); ``measured_on`` is this processor unless
    given.
    """
    source = measured_on or this_cpu()
    target = DEVICES[device] if isinstance(device, str) and device in DEVICES else device
    if isinstance(target, str):
        raise ValueError(f"advising for {device!r}: known devices are {', '.join(DEVICES)}. Or pass a Device.")
    costs = Measured.from_trace(trace, draws, geometry)
    compute = target.flops / source.flops
    memory = target.memory_bytes_per_s / source.memory_bytes_per_s
    there = costs.on(compute=compute, memory=memory)
    local = ONE_PROCESSOR if trace.device.startswith("cpu") else interference
    times = {s.name: (_step(costs, s, draws, local), _step(there, s, draws, interference)) for s in SCHEDULES}
    return Advice(
        here=trace.device, there=target.name, step_s=times, matters=_matters(there, draws, interference, times)
    )


def _step(costs: Costs, schedule: Schedule, draws: Sequence[Draw], interference: Interference) -> float:
    table = layout(schedule)
    return fmean(
        simulate(Job(timetable=table, costs=costs, workload=[draw]), interference=interference).step_s()
        for draw in draws
    )


def _matters(
    costs: Measured, draws: Sequence[Draw], interference: Interference, times: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """Move each assumption by half and see how far the best schedule's advantage moves."""
    best = min(SCHEDULES, key=lambda s: times[s.name][1])
    base = times["Serial"][1] / times[best.name][1]
    moved: dict[str, float] = {}
    for what, field in (("decode speed", "rollout"), ("suffix speed", "suffix"), ("prefix speed", "policy_prefix")):
        scaled = Scaled(costs, {field: 1.5} | ({"reference_prefix": 1.5} if field == "policy_prefix" else {}))
        moved[what] = _step(scaled, Serial(), draws, interference) / _step(scaled, best, draws, interference)
    for what, changed in (
        ("stretch of compute beside decode", replace(interference, compute_stretch=1.5 * interference.compute_stretch)),
        ("slowdown of decode", replace(interference, decode_slowdown=1.5 * interference.decode_slowdown)),
    ):
        moved[what] = _step(costs, Serial(), draws, changed) / _step(costs, best, draws, changed)
    shifts = {what: abs(ratio - base) for what, ratio in moved.items()}
    return dict(sorted(shifts.items(), key=lambda item: -item[1]))

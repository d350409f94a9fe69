"""What happened: ticks on lanes and bytes by owner. Measured and predicted traces are this one type.

A trace is only ever appended to by an executor or a simulator; phases never see it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

    from rollplex.memory.lifetime import Lifetimes

ADMIT = "admit"
"""Label of a phase's first tick where there is a budget: what it uses comes to the device, and nothing is used yet."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One bounded piece of a phase's work."""

    step: int
    """Index of the training step."""
    stage: str
    """Name of the stage of the timetable."""
    lane: str
    """Lane that it ran on."""
    phase: str
    """Name of the phase."""
    label: str
    """What the phase said of it, e.g. ``"token 12"``."""
    start_s: float
    """Start, in seconds on the trace's clock (0 = the trace's first event)."""
    end_s: float
    """End, in seconds on the same clock."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Bytes held by each owner at one moment."""

    step: int
    """Index of the training step."""
    time_s: float
    """When, in seconds on the trace's clock."""
    owners: Mapping[str, int]
    """Owner (e.g. ``"policy.weights"``, ``"rollout.kv"``) -> bytes; shared storages under one owner only."""
    host: Mapping[str, int] = field(default_factory=dict)
    """The same for host memory: what lives there, and what was moved off the device."""


@dataclass(eq=False)
class Trace:
    """An append-only record of ticks and memory samples."""

    kind: Literal["measured", "predicted"] = "measured"
    """Whether a clock or a simulator made the times."""
    device: str = "cpu"
    """What the times belong to, e.g. ``"cpu (2 cores)"`` or ``"NVIDIA H200"``."""
    ticks: list[Tick] = field(default_factory=list)
    """In the order in which they ended."""
    samples: list[MemorySample] = field(default_factory=list)
    """In the order in which they were taken."""
    schedules: dict[int, str] = field(default_factory=dict)
    """Step index -> name of the schedule it ran under."""
    budget_bytes: int | None = None
    """What the owners on the device may hold together, where that is limited."""
    _by_step: dict[int, list[Tick]] = field(default_factory=dict, init=False, repr=False)
    _indexed: int = field(default=0, init=False, repr=False)

    def steps(self) -> list[int]:
        """Indices of the traced steps, in order."""
        return sorted(self.schedules)

    def select(self, *steps: int) -> Trace:
        """The part that belongs to some steps, as a trace of its own.

        >>> Trace().select(3).ticks
        []
        """
        wanted = set(steps)
        return Trace(
            kind=self.kind,
            device=self.device,
            ticks=[t for step in sorted(wanted) for t in self.of_step(step)],
            samples=[s for s in self.samples if s.step in wanted],
            schedules={k: v for k, v in self.schedules.items() if k in wanted},
            budget_bytes=self.budget_bytes,
        )

    def of_step(self, step: int) -> list[Tick]:
        """The ticks of one step; found without walking over a long run's others."""
        for tick in self.ticks[self._indexed :]:
            self._by_step.setdefault(tick.step, []).append(tick)
        self._indexed = len(self.ticks)
        return self._by_step.get(step, [])

    def forget(self, step: int) -> None:
        """Drop what was traced of a step, because it is run again."""
        self.ticks[:] = [tick for tick in self.ticks if tick.step != step]
        self.samples[:] = [sample for sample in self.samples if sample.step != step]
        self.schedules.pop(step, None)
        self._by_step.clear()
        self._indexed = 0

    def frame(self) -> pandas.DataFrame:
        """The ticks as a table: step, stage, lane, phase, label, start_s, end_s, duration_s."""
        import pandas

        names = ["step", "stage", "lane", "phase", "label", "start_s", "end_s"]
        table = pandas.DataFrame([[getattr(t, n) for n in names] for t in self.ticks], columns=names)
        return table.assign(duration_s=table["end_s"] - table["start_s"])

    def busy_s(self, step: int) -> dict[str, float]:
        """Seconds of work in each phase of a step: the sum of its ticks, waiting left out."""
        totals: dict[str, float] = {}
        for tick in self.of_step(step):
            totals[tick.phase] = totals.get(tick.phase, 0.0) + tick.end_s - tick.start_s
        return totals

    def step_s(self, step: int) -> float:
        """Seconds from the first tick's start to the last tick's end of a step."""
        ticks = self.of_step(step)
        if not ticks:
            raise ValueError(f"asking for the time of step {step}: the trace has steps {self.steps()}")
        return max(t.end_s for t in ticks) - min(t.start_s for t in ticks)

    def peak_bytes(self) -> int:
        """Largest sum over owners of any sample; 0 where none was taken."""
        return max((sum(s.owners.values()) for s in self.samples), default=0)

    def check_residency(self) -> Lifetimes:
        """That every object was on the device exactly between its first latency-critical use and its last use.

        Raises with the first violation; returns what was proven, of which objects, and of which nothing could be.
        """
        from rollplex.memory.lifetime import lifetimes

        return lifetimes(self).check()

    def to_chrome(self, path: str | Path) -> Path:
        """Write the Chrome-trace JSON that Perfetto and ``chrome://tracing`` open."""
        path = Path(path)
        path.write_text(json.dumps(self.chrome()))
        return path

    def chrome(self) -> dict[str, object]:
        """The trace as a Chrome-trace object: ``X`` events on one thread a lane, ``C`` counters for memory."""
        lanes = list(dict.fromkeys(t.lane for t in self.ticks))
        events: list[dict[str, object]] = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"{self.kind} on {self.device}"}},
            *(
                {"name": "thread_name", "ph": "M", "pid": 0, "tid": i, "args": {"name": lane}}
                for i, lane in enumerate(lanes)
            ),
        ]
        for t in self.ticks:
            events.append(
                {
                    "name": f"{t.phase}: {t.label}",
                    "cat": t.phase,
                    "ph": "X",
                    "ts": t.start_s * 1e6,
                    "dur": (t.end_s - t.start_s) * 1e6,
                    "pid": 0,
                    "tid": lanes.index(t.lane),
                    "args": {"step": t.step, "stage": t.stage, "schedule": self.schedules.get(t.step, "")},
                }
            )
        for name, held in (
            ("memory", [s.owners for s in self.samples]),
            ("host memory", [s.host for s in self.samples]),
        ):
            events.extend(
                {"name": name, "ph": "C", "ts": s.time_s * 1e6, "pid": 0, "args": dict(owners)}
                for s, owners in zip(self.samples, held, strict=True)
                if owners or name == "memory"
            )
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"kind": self.kind, "device": self.device}}

    def timeline(self, step: int | None = None) -> go.Figure:
        """Lanes over time as a Plotly figure; the last step unless one is named."""
        from rollplex.views.timeline import timeline

        return timeline(self, step)

    def memory(self, step: int | None = None) -> go.Figure:
        """Bytes by owner over time as a Plotly figure, with budget, phases and host memory; every step unless named."""
        from rollplex.views.memory import memory

        return memory(self, step)

    def __repr__(self) -> str:
        return f"Trace({self.kind} on {self.device}: {len(self.schedules)} steps, {len(self.ticks)} ticks)"

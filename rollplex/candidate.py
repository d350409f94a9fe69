"""Ways to run, what each would come to, and the table of them that a plan is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollplex.costs.residency import Residency
from rollplex.costs.roofline import Placement
from rollplex.presets.table import label
from rollplex.scenario import layout
from rollplex.schedule import Schedule
from rollplex.simulate import Simulation

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a plan may use."""

    memory_bytes: float | None = None
    """Of a device; None: all that it has but a twentieth."""
    max_staleness: int | None = None
    """Updates that sampling weights may be behind; None: any."""
    on_policy: bool = False
    """Whether every trained token must come from the weights that are trained."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to run, and what it would come to."""

    schedule: Schedule
    """When."""
    placement: Placement
    """How models are cut."""
    residency: Residency
    """What is on a device when."""
    rollout_share: float | None
    """The rollout pool's share of the devices; None with one pool."""
    lower_bound_s: float
    """No step can be shorter."""
    step_s: float = float("nan")
    """Simulated seconds of a step; NaN where it was not simulated."""
    idle_share: float = float("nan")
    """Device-seconds without work."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """Pool -> most bytes on one of its devices."""
    bound_by: str = ""
    """The phase with the largest share of the critical path."""
    why_not: str = ""
    """Why it cannot be used, or was not simulated; empty if it can."""
    simulation: Simulation | None = None
    """All of it."""

    @property
    def fits(self) -> bool:
        """Whether it was simulated and can be used."""
        return not self.why_not

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        table = layout(self.schedule)
        return {
            "schedule": label(self.schedule),
            "train_tp": self.placement.train_tp,
            "rollout_tp": self.placement.rollout_tp,
            "rollout_share": self.rollout_share,
            "residency": self.residency.name,
            "step_s": self.step_s,
            "lower_bound_s": self.lower_bound_s,
            "bound_by": self.bound_by,
            "idle_share": self.idle_share,
            **{f"peak_gib_{pool}": num / 2**30 for pool, num in self.peak_bytes.items()},
            "staleness": table.staleness,
            "on_policy": table.on_policy,
            "fits": self.fits,
            "why_not": self.why_not,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """Candidates, the fastest that fits first."""

    candidates: tuple[Candidate, ...]
    """All of them."""

    @property
    def best(self) -> Candidate:
        """The fastest that fits."""
        if not self.candidates or not self.candidates[0].fits:
            reasons = "; ".join(sorted({c.why_not for c in self.candidates})[:3])
            raise ValueError(f"choosing from a plan of {len(self.candidates)} candidates: none fits ({reasons})")
        return self.candidates[0]

    def frame(self) -> pandas.DataFrame:
        """All candidates as a table."""
        import pandas

        return pandas.DataFrame([candidate.row() for candidate in self.candidates])

    def pareto(self) -> Plan:
        """Those that fit and that no other beats in both step time and memory."""
        kept: list[Candidate] = []
        for candidate in sorted((c for c in self.candidates if c.fits), key=lambda c: c.step_s):
            peak = max(candidate.peak_bytes.values())
            if not kept or peak < max(kept[-1].peak_bytes.values()):
                kept.append(candidate)
        return Plan(tuple(kept))

    def timeline(self, index: int = 0) -> go.Figure:
        """A candidate's predicted step as a timeline."""
        made = self.candidates[index].simulation
        if made is None:
            raise ValueError(f"drawing candidate {index}: it was not simulated ({self.candidates[index].why_not})")
        return made.trace.timeline()

    def _repr_html_(self) -> str:
        return self.frame().to_html(max_rows=30)

    def __repr__(self) -> str:
        fit = sum(candidate.fits for candidate in self.candidates)
        return f"Plan({len(self.candidates)} candidates, {fit} fit)"

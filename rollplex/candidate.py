"""Ways to run, what each would come to, and the table of them that a plan is."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from rollplex.bounds import NUMBER, POSITIVE, expect
from rollplex.costs.placement import Placement
from rollplex.costs.residency import Residency
from rollplex.schedule import Schedule, Timetable
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

    def __post_init__(self) -> None:
        if self.memory_bytes is not None:
            expect("making a Budget", vars(self), memory_bytes=POSITIVE)
        if self.max_staleness is not None:
            expect("making a Budget", vars(self), max_staleness=NUMBER)


@dataclass(frozen=True, kw_only=True, repr=False)
class Candidate:
    """One way to run, and what it is predicted to come to."""

    name: str
    """What its schedule is called here."""
    schedule: Schedule
    """When; a `Run` takes it, if it needs one pool."""
    timetable: Timetable
    """The schedule, laid out."""
    placement: Placement
    """How models are cut."""
    residency: Residency
    """What is on a device when."""
    rollout_share: float | None
    """The rollout pool's share of the devices; None with one pool."""
    lower_bound_s: float = float("inf")
    """No step can be shorter."""
    step_s: float = float("nan")
    """Simulated seconds of a step; NaN where it was not simulated."""
    idle_share: float = float("nan")
    """Device-seconds without work, of all."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """Pool -> most bytes on one of its devices."""
    work_s: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds of it in the last simulated step, whatever ran beside it."""
    bounds_s: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds of that step that it bounds, longest first; a phase that bounds none is hidden."""
    why_not: str = ""
    """Why it cannot be used, or was not simulated; empty if it can."""
    simulation: Simulation | None = None
    """All of it."""

    @property
    def fits(self) -> bool:
        """Whether it was simulated and can be used."""
        return not self.why_not

    @property
    def bound_by(self) -> str:
        """The phase that bounds most of the step; empty where it was not simulated."""
        return next(iter(self.bounds_s), "")

    @property
    def peak(self) -> float:
        """Most bytes on any device."""
        return float(max(self.peak_bytes.values(), default=0))

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "kind": "predicted",
            "schedule": self.name,
            "train_tp": self.placement.train_tp,
            "rollout_tp": self.placement.rollout_tp,
            "rollout_share": self.rollout_share,
            "residency": self.residency.name,
            "step_s": self.step_s,
            "lower_bound_s": self.lower_bound_s,
            "bound_by": self.bound_by,
            "idle_share": self.idle_share,
            **{f"peak_gib_{pool}": num / 2**30 for pool, num in self.peak_bytes.items()},
            "staleness": self.timetable.staleness,
            "on_policy": self.timetable.on_policy,
            "fits": self.fits,
            "why_not": self.why_not,
        }

    def __repr__(self) -> str:
        place = f"TP {self.placement.train_tp}/{self.placement.rollout_tp}, {self.residency.name}"
        found = (
            f"predicted {self.step_s:.4g} s a step, bound by {self.bound_by}" if self.simulation else "not simulated"
        )
        return f"Candidate({self.name}, {place}: {found}{'; ' + self.why_not if self.why_not else ''})"


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Candidates, the fastest that fits first. All its times are predicted."""

    candidates: tuple[Candidate, ...]
    """All of them."""
    ground: str = ""
    """What they are for: model, devices and work."""

    @property
    def best(self) -> Candidate:
        """The fastest that fits."""
        return self._fitting[0]

    @property
    def _fitting(self) -> tuple[Candidate, ...]:
        fitting = tuple(candidate for candidate in self.candidates if candidate.fits)
        if not fitting:
            reasons = list(dict.fromkeys(candidate.why_not for candidate in self.candidates))[:3]
            raise ValueError(
                f"choosing from a plan of {len(self.candidates)} candidates: none fits ({'; '.join(reasons)}). Give more "
                "devices, a wider budget, or smaller work."
            )
        return fitting

    def frame(self) -> pandas.DataFrame:
        """All candidates as a table: seconds, GiB, and shares of 1."""
        import pandas

        return pandas.DataFrame([candidate.row() for candidate in self.candidates])

    def by_schedule(self) -> pandas.DataFrame:
        """The best candidate of each schedule, as a table: how many times as fast as `Serial`'s, and what bounds it.

        ``candidate`` is its place in the plan, for `compare` and `timeline`; a schedule that does not fit says why.
        """
        import pandas

        first: dict[str, int] = {}
        for index, candidate in enumerate(self.candidates):
            first.setdefault(candidate.name, index)
        serial = [one.step_s for one in self.candidates if one.fits and one.name == "Serial"][:1] or [float("nan")]
        rows: list[dict[str, Any]] = []
        for index in first.values():
            one = self.candidates[index]
            rows.append({"candidate": index} | one.row() | {"times_serial": serial[0] / one.step_s})
        wanted = ["schedule", "kind", "candidate", "step_s", "times_serial", "bound_by", "idle_share", "on_policy"]
        wanted += ["train_tp", "rollout_tp", "rollout_share", "residency", "why_not"]
        return pandas.DataFrame(rows, columns=wanted).set_index("schedule")

    def compare(self, *indices: int) -> pandas.DataFrame:
        """Why some candidates differ: for each phase its seconds of work, and the seconds of the step that it bounds.

        What bounds a step adds up to it; a phase with work that bounds nothing is hidden behind another.
        """
        import pandas

        columns: dict[tuple[str, str], dict[str, float]] = {}
        for index in indices or (0,):
            one = self._simulated(index)
            name = f"{index}: {one.name}"
            phases = {phase: one.bounds_s.get(phase, 0.0) for phase in one.work_s}
            columns[name, "predicted work_s"] = one.work_s
            columns[name, "predicted bounds_s"] = phases
        return pandas.DataFrame(columns).fillna(0.0)

    def pareto(self) -> Plan:
        """Those that fit and that no other beats in both step time and memory."""
        kept: list[Candidate] = []
        for candidate in sorted(self._fitting, key=lambda c: c.step_s):
            if not kept or candidate.peak < kept[-1].peak:
                kept.append(candidate)
        return Plan(tuple(kept), self.ground)

    def timeline(self, index: int = 0) -> go.Figure:
        """A candidate's predicted step as a timeline."""
        made = self._simulated(index).simulation
        assert made is not None
        return made.trace.timeline()

    def _simulated(self, index: int) -> Candidate:
        if not -len(self.candidates) <= index < len(self.candidates):
            raise ValueError(f"looking at candidate {index}: the plan has {len(self.candidates)}, counted from 0")
        one = self.candidates[index]
        if one.simulation is None:
            raise ValueError(f"looking at candidate {index}: it was not simulated ({one.why_not}); choose another")
        return one

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.frame().to_html(max_rows=30)}"

    def __repr__(self) -> str:
        fit = sum(candidate.fits for candidate in self.candidates)
        return (
            f"Plan(predicted: {len(self.candidates)} candidates, {fit} fit{'; ' + self.ground if self.ground else ''})"
        )

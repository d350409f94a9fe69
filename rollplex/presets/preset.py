"""What a published system is here: which of our pieces stand for its mechanism, and one effect that they must show.

A preset reproduces a direction, never a published factor: those belong to other models, data and baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rollplex.costs.residency import MANAGED, Residency
from rollplex.scenario import Scenario, layout
from rollplex.schedule import Schedule, Timetable
from rollplex.simulate import Simulation


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A published qualitative effect, as simulated numbers over a parameter and the claim about them."""

    claim: str
    """What the paper found, in our words."""
    parameter: str
    """What is varied."""
    metric: str
    """What the numbers are."""
    values: dict[str, float]
    """Value of the parameter -> the metric, simulated."""
    holds: bool
    """Whether the numbers show the claim."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One system."""

    name: str
    """Its name."""
    arxiv: str
    """Its paper."""
    headline: str
    """What it published about itself, for the reader; never used in a computation."""
    mapping: str
    """Its mechanism, and which of our pieces stand for it."""
    left_out: str
    """What of it is not simulated."""
    schedule: Schedule
    """Its timetable."""
    effect: Callable[[Scenario, Preset], Effect]
    """Computes its effect in a scenario."""
    placement: dict[str, Any] = field(default_factory=dict)
    """Changes to a placement."""
    residency: Residency = MANAGED
    """What is on a device when."""
    rollout_share: float = 0.5
    """The rollout pool's share of the devices, where it has one."""
    num_jobs: int = 1
    """Jobs that share the pools."""

    @property
    def timetable(self) -> Timetable:
        """Its timetable over stand-ins; says its staleness."""
        return layout(self.schedule)

    def simulate(self, scenario: Scenario, *, num_steps: int = 6, **changes: Any) -> Simulation:
        """Simulate it; ``changes`` are to the placement."""
        return scenario.simulate(
            self.schedule,
            replace(scenario.usual_placement(), **(self.placement | changes)),
            self.residency,
            rollout_share=self.rollout_share,
            num_jobs=self.num_jobs,
            num_steps=num_steps,
        )

    def __repr__(self) -> str:
        return f"Preset({self.name}, arXiv {self.arxiv})"


def step_s(simulation: Simulation, skip: int = 2) -> float:
    """Seconds of a step once the pipeline is full, on average over the jobs and divided by their number."""
    times = [simulation.step_s(job, skip=skip) for job in simulation.ends]
    return sum(times) / len(times) / len(times)

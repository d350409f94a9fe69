"""A job to simulate: a timetable, what its phases cost, and how much work each of its steps has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from rollplex.bounds import COUNT, NUMBER, expect
from rollplex.costs.costs import Costs
from rollplex.costs.workload import Draw, Workload
from rollplex.schedule import Timetable
from rollplex.selection import Everything, Oversample, Partial, Replicate, TailBatch
from rollplex.simulate.held import Held


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """Some steps of one training run."""

    timetable: Timetable
    """What runs when."""
    costs: Costs
    """What it costs."""
    workload: Workload | Sequence[Draw]
    """The sizes of a step, or the lengths of each step."""
    name: str = "job"
    """What it is called where several jobs share pools."""
    num_steps: int = 1
    """Steps to simulate."""
    seed: int = 0
    """Seed of the lengths."""
    held: tuple[Held, ...] = ()
    """What occupies device memory, and when."""

    def __post_init__(self) -> None:
        if not isinstance(self.timetable, Timetable):
            raise ValueError(
                f"making a Job: its timetable is {self.timetable!r}, a {type(self.timetable).__name__}; lay a schedule out "
                "first, with rollplex.scenario.layout(schedule)"
            )
        expect(f"making the Job {self.name!r}", vars(self), num_steps=COUNT, seed=NUMBER)

    def draws(self) -> list[Draw]:
        """The lengths of each step, after the timetable's selection."""
        if not isinstance(self.workload, Workload):
            draws = list(self.workload)[: self.num_steps] if isinstance(self.workload, Iterable) else []
            if len(draws) < self.num_steps or not all(isinstance(draw, Draw) for draw in draws):
                raise ValueError(
                    f"simulating {self.num_steps} steps of {self.name!r}: the lengths given are {self.workload!r}; give a Workload, or "
                    "a Draw for each step"
                )
            return draws
        selection = self.timetable.selection
        if selection is None:
            selection = Everything()
        if not isinstance(selection, Everything | Partial | Oversample | TailBatch | Replicate):
            raise ValueError(
                f"simulating {self.timetable.name}: the simulator knows no selection {selection.name!r}. Give the "
                "lengths of each step as a list of Draw."
            )
        return list(islice(selection.draws(self.workload, self.seed), self.num_steps))

"""A serving load beside a training job: what co-running them gives against devices of their own."""

from __future__ import annotations

from rollplex.costs.costs import Given
from rollplex.costs.workload import Workload
from rollplex.interference import Interference
from rollplex.scenario import Scenario
from rollplex.schedule import Slot, Stage, Timetable
from rollplex.simulate import Job, simulate
from rollplex.standins import StandIn


def serving_timetable() -> Timetable:
    """Requests decoded on a lane of their own, on the pool that training uses."""
    phase = StandIn("serve", "rollout", {"prompts": True})
    return Timetable(
        name="serve", stages=(Stage(name="serve", slots=(Slot(phase=phase, lane="serve", takes=("prompts",)),)),)
    )


def training_timetable() -> Timetable:
    """Plain training steps."""
    phase = StandIn("train", "suffix", {"prompts": True})
    return Timetable(
        name="train", stages=(Stage(name="train", slots=(Slot(phase=phase, lane="train", takes=("prompts",)),)),)
    )


def throughput_ratio(scenario: Scenario, slowdown: float) -> float:
    """Work done a second by co-running, over half the devices each: above 1 co-running is better.

    With half the devices each of the two takes twice its time.
    """
    steps, seconds = 4, 10.0
    load = Workload(prompts=scenario.workload.prompts, group=1)
    jobs = [
        Job(
            name="serve",
            timetable=serving_timetable(),
            costs=Given({"rollout": seconds}),
            workload=load,
            num_steps=steps,
        ),
        Job(
            name="train",
            timetable=training_timetable(),
            costs=Given({"suffix": seconds}),
            workload=load,
            num_steps=steps,
        ),
    ]
    both = simulate(*jobs, interference=Interference(decode_slowdown=slowdown, compute_stretch=slowdown)).end_s
    return 2 * seconds * steps / both

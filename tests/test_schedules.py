"""The shipped schedules: what each puts where, and that all of them train alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_phases import Fake
from tiny_policy import gap, phases, task, tiny

from rollplex.execute import ExecutorName
from rollplex.losses import GRPO
from rollplex.run import Run
from rollplex.schedule import Schedule, ScheduleError, Timetable
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed

SCHEDULES = (Serial(), Rollplex(), OnePrefill(), Streamed(), Streamed(handoff=True))
schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


def layout(timetable: Timetable) -> list[dict[str, list[str]]]:
    """Stage by stage: lane -> the fields that its slots write."""
    return [{lane: [s.phase.writes for s in slots] for lane, slots in st.lanes().items()} for st in timetable.stages]


@schedules
@pytest.mark.parametrize("beta", [0.0, 0.04], ids=["no reference", "reference"])
def test_each_lays_out_every_phase_once_and_passes_the_check(schedule: Schedule, beta: float) -> None:
    """With a reference or without."""
    made = phases(tiny(), loss=GRPO(beta=beta))
    timetable = schedule.timetable(made)
    timetable.check()
    placed = [slot.phase for stage in timetable.stages for slot in stage.slots]
    assert sorted(map(id, placed)) == sorted(map(id, made))
    assert timetable.name == schedule.name == type(schedule).__name__


def test_serial_has_a_barrier_after_each_phase() -> None:
    """One lane, in the order of the data path."""
    order = ["rollout", "rewards", "reference_prefix", "policy_prefix", "suffix", "update"]
    made = Serial().timetable(phases(tiny(), loss=GRPO(beta=0.1)))
    assert layout(made) == [{"train": [field]} for field in order]


def test_rollplex_puts_both_prefixes_beside_decode() -> None:
    """And nothing else: suffix and update have stages of their own."""
    made = Rollplex().timetable(phases(tiny(), loss=GRPO(beta=0.1)))
    window = {"rollout": ["rollout"], "train": ["reference_prefix", "policy_prefix"], "host": ["rewards"]}
    assert layout(made) == [window, {"train": ["suffix"]}, {"train": ["update"]}]


def test_one_prefill_starts_decode_from_the_actors_prefix() -> None:
    """Which therefore comes first; the reference's fills the window."""
    made = OnePrefill().timetable(phases(tiny(), loss=GRPO(beta=0.1)))
    window = {"rollout": ["rollout"], "train": ["reference_prefix"], "host": ["rewards"]}
    assert layout(made) == [{"train": ["policy_prefix"]}, window, {"train": ["suffix"]}, {"train": ["update"]}]
    assert made.stages[1].slots[0].takes == ("prompts", "policy_prefix")


def test_streamed_has_the_suffix_in_the_decode_window() -> None:
    """Fed with groups as they complete and are scored."""
    made = Streamed().timetable(phases(tiny(), loss=GRPO(beta=0.1)))
    train = ["reference_prefix", "policy_prefix", "suffix"]
    assert layout(made) == [{"rollout": ["rollout"], "train": train, "host": ["rewards"]}, {"train": ["update"]}]
    (suffix,) = [slot for slot in made.stages[0].slots if slot.phase.writes == "suffix"]
    assert suffix.streams == ("rollout", "rewards")


def test_without_a_handoff_decode_is_given_no_prefix() -> None:
    """An optional input is used where a schedule says so, not wherever it happens to exist."""
    for schedule in (Serial(), Rollplex(), Streamed()):
        slots = [slot for stage in schedule.timetable(phases(tiny())).stages for slot in stage.slots]
        assert [slot.takes for slot in slots if slot.phase.writes == "rollout"] == [("prompts",)]


@schedules
@pytest.mark.parametrize("missing", ["policy_prefix", "rollout", "rewards", "suffix", "update"])
def test_a_phase_that_is_missing_is_named(schedule: Schedule, missing: str) -> None:
    """With the ones that are there."""
    made = [phase for phase in phases(tiny()) if phase.writes != missing]
    with pytest.raises(ScheduleError, match=f"no phase writes '{missing}'"):
        schedule.timetable(made)


@schedules
def test_two_phases_for_one_field_are_refused(schedule: Schedule) -> None:
    """None of them is silently dropped."""
    with pytest.raises(ScheduleError, match="two phases write the same field"):
        schedule.timetable([*phases(tiny()), Fake("rewards")])


def outcome(schedule: Schedule, executor: ExecutorName = "interleave", num: int = 2, **options: Any) -> Any:
    """Weights and sampled tokens after some steps, and the weights before them."""
    policy = tiny()
    before = policy.snapshot()
    made = phases(policy, loss=GRPO(beta=0.04), group=3, max_new_tokens=6, **options)
    run = Run(task(), made, schedule, prompts=3, executor=executor)
    tokens = [g.tokens.tolist() for step in run.steps(num) for g in step.rollout.groups]  # type: ignore[union-attr]
    return policy.snapshot(), tokens, before


@pytest.fixture(scope="module")
def serial() -> Any:
    return outcome(Serial())


def test_serial_steps_move_the_weights(serial: Any) -> None:
    """Or else the agreements below would show nothing."""
    assert gap(serial[0], serial[2]) > 1e-4


def test_rollplex_is_bit_identical_to_serial(serial: Any) -> None:
    """The same work at other times."""
    weights, tokens, _ = outcome(Rollplex())
    assert tokens == serial[1]
    assert all(torch.equal(weights[name], value) for name, value in serial[0].items())


@pytest.mark.parametrize(
    ("schedule", "executor"),
    [
        (OnePrefill(), "interleave"),
        (Streamed(), "interleave"),
        (Streamed(handoff=True), "interleave"),
        (Rollplex(), "threads"),
        (Streamed(), "threads"),
    ],
    ids=str,
)
def test_schedules_and_executors_agree_with_serial(schedule: Schedule, executor: ExecutorName, serial: Any) -> None:
    """The same tokens, and weights that differ by the order of sums alone."""
    weights, tokens, _ = outcome(schedule, executor)
    assert tokens == serial[1]
    assert gap(serial[0], weights) < 1e-9

"""What every phase is: a generator with named inputs, that a person can call."""

from __future__ import annotations

import pytest
from fake_phases import Fake, Value, counted, reading
from tiny_policy import phases, prompts, responses, tiny

from rollplex.feed import Feed
from rollplex.losses import GRPO
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.step import Step


def test_calling_a_phase_runs_it_to_the_end() -> None:
    """The call's value is the generator's."""
    log: list[str] = []
    assert Fake("rollout", counted(log, "a", 3))() == Value("a")
    assert log == ["a0", "a1", "a2"]


def test_an_open_feed_cannot_be_read_by_hand() -> None:
    """Nobody would ever fill it: an error instead of an endless loop. A closed one is read."""
    feed = Feed[int]()
    feed.append(1)
    phase = Fake("rewards", reading([], "a", "rollout"))
    with pytest.raises(RuntimeError, match="running 'rewards phase' by hand: an input is a feed that is still open"):
        phase(rollout=feed)
    feed.close()
    assert phase(rollout=feed) == Value((1,))


def test_inputs_are_the_parameters_of_run() -> None:
    """Required ones have no default."""
    policy = tiny()
    inputs = {phase.name: phase.inputs() for phase in phases(policy, loss=GRPO(beta=0.1))}
    assert inputs == {
        "prefix(policy)": {"prompts": True},
        "prefix(reference)": {"prompts": True},
        "decode": {"prompts": True, "policy_prefix": False},
        "reward": {"prompts": True, "rollout": True},
        "suffix": {
            "prompts": True,
            "policy_prefix": True,
            "rollout": True,
            "rewards": True,
            "reference_prefix": False,
        },
        "update": {"suffix": True},
    }


def test_phases_read_and_write_fields_of_the_step() -> None:
    """Every input and output is a field, and each field has one writer."""
    made = phases(tiny(), loss=GRPO(beta=0.1))
    fields = set(Step.field_names())
    assert {name for phase in made for name in phase.inputs()} <= fields
    writes = [phase.writes for phase in made]
    assert len(set(writes)) == len(writes)
    assert set(writes) == fields - {"index", "seed", "version", "prompts"}


def test_no_phase_writes_what_it_only_reads() -> None:
    """Of all phases the suffix changes gradients and the update weights; the others nothing."""
    changed = {phase.name: [r.name for r in phase.mutates] for phase in phases(tiny()) if phase.mutates}
    assert changed["suffix"] == ["policy.gradients"]
    assert changed["update"][:2] == ["policy.weights", "policy.gradients"]
    assert changed.keys() == {"suffix", "update"}


def test_every_phase_can_be_run_again() -> None:
    """By hand, in a notebook: the same inputs give the same value."""
    policy, batch = tiny(), prompts("one image")
    rollout, _ = responses(policy, batch)
    prefix = Prefix(policy)
    one, two = prefix(batch), prefix(batch)
    assert bool((one.boundaries[0].output.last_hidden == two.boundaries[0].output.last_hidden).all())
    reward = Reward([lambda completions, **_: list(range(len(completions)))])
    assert reward(batch, rollout).mean() == reward(batch, rollout).mean() == 1.0

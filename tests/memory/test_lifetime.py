"""An object that is not where its contract says is found: at its first wrong tick, and by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rollplex.memory.lifetime import ResidencyError, lifetimes
from rollplex.trace import ADMIT, MemorySample, Tick, Trace

PHASES = (
    ("P1", "prefix(reference)", 1),
    ("P1", "prefix(policy)", 1),
    ("P1", "decode", 3),
    ("P1", "reward", 1),
    ("P2", "suffix", 2),
    ("P3", "update", 2),
)
"""Stage, phase and number of ticks of a serial step; each tick takes a second."""

WEIGHTS = {"policy.weights": 8}
HELD: dict[str, dict[str, int]] = {
    "prefix(reference)": {"reference.weights": 4},
    "prefix(policy)": {"reference.boundary": 1, "prefix.logprobs": 1},
    "decode": {"reference.boundary": 1, "policy.boundary": 1, "prefix.logprobs": 2, "engine.kv": 3},
    "reward": {"reference.boundary": 1, "policy.boundary": 1, "prefix.logprobs": 2},
    "suffix": {
        "reference.boundary": 1,
        "policy.boundary": 1,
        "prefix.logprobs": 2,
        "reference.weights": 4,
        "policy.gradients": 2,
    },
    "update": {"policy.gradients": 1, "policy.optimizer": 2},
}
"""Phase -> who is on the device while it runs, besides the weights, when every contract is kept."""


def trace(*steps: int, **changed: Mapping[str, int]) -> Trace:
    """Steps in which every contract is kept, but for the phases whose holdings are changed."""
    made, now = Trace(), 0.0
    for step in steps:
        made.schedules[step] = "Serial"
        for stage, phase, num in PHASES:
            held = {**WEIGHTS, **HELD[phase], **changed.get(phase.partition("(")[0], {})}
            made.samples.append(MemorySample(step, now, {owner: size for owner, size in held.items() if size}))
            for i in range(num):
                made.ticks.append(Tick(step, stage, "gpu", phase, f"tick {i}", now, now + 1))
                now += 1
    return made


def test_a_step_that_keeps_its_contracts_is_proven() -> None:
    found = trace(0, 1).check_residency()
    assert not found.violations
    assert set(found.proven) == {
        "rollout KV", "actor boundary KV", "reference boundary KV", "reference weights", "prefix log-probabilities",
        "gradients", "actor weights", "master weights and Adam moments",
    }  # fmt: skip
    assert set(found.proven.values()) == {20}


def test_what_no_sample_names_is_not_proven() -> None:
    assert set(lifetimes(trace(0)).unseen) == {"prefix activations", "suffix activations"}


@pytest.mark.parametrize(
    ("phase", "changed", "kind", "name", "label"),
    [
        ("suffix", {"engine.kv": 3}, "late", "rollout KV", "tick 0"),
        ("update", {"policy.boundary": 1}, "late", "actor boundary KV", "tick 0"),
        ("decode", {"policy.optimizer": 9}, "early", "master weights and Adam moments", "tick 0"),
        ("decode", {"policy.gradients": 2}, "early", "gradients", "tick 0"),
        ("update", {"prefix.logprobs": 2}, "late", "prefix log-probabilities", "tick 0"),
        ("suffix", {"prefix.logprobs": 0}, "absent", "prefix log-probabilities", "tick 0"),
        ("suffix", {"policy.boundary": 0}, "absent", "actor boundary KV", "tick 0"),
        ("suffix", {"reference.weights": 0}, "absent", "reference weights", "tick 0"),
        ("decode", {"policy.weights": 0}, "absent", "actor weights", "tick 0"),
    ],
)
def test_the_first_wrong_tick_is_named(
    phase: str, changed: Mapping[str, int], kind: str, name: str, label: str
) -> None:
    first = lifetimes(trace(0, **{phase: changed})).first
    assert first is not None
    assert (first.kind, first.contract.name, first.tick.phase, first.tick.label) == (kind, name, phase, label)
    assert (first.nbytes == 0) == (kind == "absent")


def test_what_comes_in_a_phases_first_tick_is_not_absent_in_it() -> None:
    """In the one in which it is admitted; in any other it is."""
    made = trace(0)
    place = next(i for i, tick in enumerate(made.ticks) if tick.phase == "suffix")
    start = made.ticks[place].start_s
    before = next(sample for sample in made.samples if sample.time_s == start)
    less = {owner: num for owner, num in before.owners.items() if owner != "reference.weights"}
    made.samples[made.samples.index(before)] = replace(before, owners=less)
    made.samples.append(replace(before, time_s=start + 0.5))
    first = lifetimes(made).first
    assert first is not None
    assert (first.kind, first.tick.label) == ("absent", "tick 0")
    made.ticks[place] = replace(made.ticks[place], label=ADMIT)
    assert not lifetimes(made).violations


def test_the_error_names_step_object_tick_and_contract() -> None:
    made = trace(0, 1)
    place = next(i for i, s in enumerate(made.samples) if s.step == 1 and "policy.optimizer" in s.owners)
    kept = made.samples[place]
    made.samples[place] = replace(kept, owners={**kept.owners, "rollout.kv": 5})
    with pytest.raises(ResidencyError) as raised:
        made.check_residency()
    assert str(raised.value) == (
        "checking residency: step 1, tick 'tick 0' of update: 5 bytes of rollout KV (engine.kv) were on the device "
        "without a use. Its contract: on the device while decoding, freed when generation ends. Evict or free it."
    )


def test_what_was_never_freed_is_late_and_tells_its_last_use() -> None:
    first = lifetimes(trace(0, reward={"engine.kv": 3})).first
    assert first is not None
    assert first.use is not None
    assert (first.use.phase, first.use.label) == ("decode", "tick 2")
    assert "after the last use, tick 'tick 2' of decode" in str(first)


def test_one_violation_an_object_and_step() -> None:
    found = lifetimes(trace(0, 1, suffix={"engine.kv": 3}, update={"engine.kv": 3}))
    assert [(v.contract.name, v.tick.step) for v in found.violations] == [("rollout KV", 0), ("rollout KV", 1)]
    assert "rollout KV" not in found.proven


def test_away_between_two_uses_is_allowed_and_staying_too() -> None:
    assert "reference weights" in lifetimes(trace(0)).proven
    stays = trace(0, decode={"reference.weights": 4}, prefix={"reference.weights": 4}, reward={"reference.weights": 4})
    assert "reference weights" in lifetimes(stays).proven


def test_everything_resident_is_not_phase_aware() -> None:
    """The whole of a step's state there all the time: what management is for."""
    everything = {"policy.optimizer": 9, "policy.gradients": 2, "engine.kv": 3, "reference.weights": 4}
    found = lifetimes(trace(0, 1, **{phase.partition("(")[0]: everything for _, phase, _ in PHASES}))
    assert {v.contract.name for v in found.violations} == {
        "master weights and Adam moments", "gradients", "rollout KV", "reference weights",
    }  # fmt: skip


def test_names_of_pools_are_no_part_of_an_owner() -> None:
    made = trace(0, suffix={"engine.kv": 3})
    made.samples[:] = [
        replace(s, owners={f"train: {owner}": num for owner, num in s.owners.items()}) for s in made.samples
    ]
    first = lifetimes(made).first
    assert first is not None
    assert first.contract.name == "rollout KV"


def test_a_trace_without_samples_proves_nothing_and_says_so() -> None:
    made = trace(0)
    made.samples.clear()
    with pytest.raises(ValueError, match="no sample from before the first tick"):
        lifetimes(made)
    with pytest.raises(ValueError, match="0 ticks"):
        lifetimes(Trace())

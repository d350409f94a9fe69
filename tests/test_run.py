"""A run: steps one after another, errors that lose nothing, and going on after an interrupt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_policy import checksum, gap, moved, phases, task, tiny

from rollplex.losses import GRPO
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.policy import Policy, Reference
from rollplex.recorder import Recorder
from rollplex.resource import Resource
from rollplex.rewards import RewardError
from rollplex.run import Run
from rollplex.schedule import Schedule
from rollplex.schedules import Rollplex, Serial, Streamed
from rollplex.trace import Trace


class Once:
    """A reward function that raises the first time it is called at a step."""

    __name__ = "once"

    def __init__(self, error: BaseException, call: int) -> None:
        self.error, self.call, self.calls = error, call, 0

    def __call__(self, completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        self.calls += 1
        if self.calls == self.call:
            raise self.error
        return checksum(completion_ids)


def make(policy: Policy | None = None, schedule: Schedule | None = None, **options: Any) -> Run:
    made = phases(tiny() if policy is None else policy, rewards=options.pop("rewards", [checksum]))
    return Run(task(), made, schedule, **{"prompts": 2, **options})


def test_a_step_has_every_field_and_where_it_came_from() -> None:
    """Index, seed, version and prompts of the step."""
    run = make(seed=7)
    first, second = run.steps(2)
    assert first.filled[4:] == ("policy_prefix", "rollout", "rewards", "suffix", "update")
    assert [(s.index, s.seed, s.version) for s in (first, second)] == [(0, 7, 0), (1, 7, 1)]
    assert (second.prompts.step, second.prompts.seed, len(second.prompts)) == (1, 7, 2)
    assert first.prompts[0].pixel_hash != second.prompts[0].pixel_hash
    assert run.last is second


def test_steps_are_made_as_the_loop_asks() -> None:
    """Breaking off leaves the run where it is, and another loop goes on from there."""
    run = make()
    for _ in run.steps(50):
        break
    assert run.next_index == 1
    assert [step.index for step in run.steps(1)] == [1]


def test_the_same_run_again_is_the_same() -> None:
    """Bit for bit; another seed samples other responses."""
    policies = [tiny() for _ in range(3)]
    runs = [make(policy, seed=seed) for policy, seed in zip(policies, (0, 0, 1), strict=True)]
    tokens = [[g.tokens.tolist() for s in run.steps(2) for g in s.rollout.groups] for run in runs]  # type: ignore[union-attr]
    ends = [policy.snapshot() for policy in policies]
    assert tokens[0] == tokens[1] != tokens[2]
    assert moved(policies[1], ends[0]) == 0 < moved(policies[2], ends[0])


def test_steps_train() -> None:
    """Weights move and the version counts the updates."""
    policy = tiny()
    before = policy.snapshot()
    list(make(policy).steps(2))
    assert moved(policy, before) > 1e-3
    assert policy.version == 2


def test_an_error_keeps_what_was_finished() -> None:
    """The rollout is in ``run.last``, the note says so, and the step can be tried again."""
    run = make(rewards=[Once(ValueError("no verdict"), 2)])
    with pytest.raises(RewardError, match="no verdict") as caught:
        run.step()
    assert run.last is not None
    assert run.last.rollout is not None
    assert (run.last.index, run.last.rewards, run.next_index) == (0, None, 0)
    assert any("phase 'reward' of step 0" in note for note in caught.value.__notes__)
    assert run.step().filled[-1] == "update"


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, torch.Tensor]:
    """Weights after two steps."""
    policy = tiny()
    list(make(policy).steps(2))
    return policy.snapshot()


@pytest.mark.parametrize("schedule", [Serial(), Rollplex(), Streamed()], ids=repr)
@pytest.mark.parametrize("executor", ["interleave", "threads"])
@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    schedule: Any, executor: Any, call: int, uninterrupted: dict[str, torch.Tensor]
) -> None:
    """Between groups of a stage, with other phases under way: the step is run again and ends where it would have."""
    policy = tiny()
    run = make(policy, schedule, executor=executor, rewards=[Once(KeyboardInterrupt(), call)])
    with pytest.raises(KeyboardInterrupt):
        list(run.steps(2))
    assert policy.version == 0
    assert [step.index for step in run.steps(2)] == [0, 1]
    assert moved(policy, uninterrupted) < 1e-9
    assert torch.is_grad_enabled()


def test_the_trace_of_a_step_that_was_run_again_is_that_of_the_second_run() -> None:
    """One rollout's tokens, not two."""
    run = make(rewards=[Once(KeyboardInterrupt(), 2)])
    with pytest.raises(KeyboardInterrupt):
        run.step()
    run.step()
    decode = [tick.label for tick in run.trace.ticks if tick.phase == "decode"]
    assert len(decode) == len(set(decode))


def test_every_phase_is_in_the_trace() -> None:
    """Under the name of the schedule, in stages and lanes of its timetable."""
    run = make(schedule=Rollplex())
    list(run.steps(2))
    assert run.trace.steps() == [0, 1]
    assert run.trace.schedules == {0: "Rollplex", 1: "Rollplex"}
    assert set(run.trace.busy_s(1)) == {phase.name for phase in run.phases}
    assert {(t.stage, t.lane) for t in run.trace.ticks} == {
        (stage.name, lane) for stage in run.timetable().stages for lane in stage.lanes()
    }


def test_rows_that_are_too_long_are_counted() -> None:
    """A batch never shrinks silently."""
    run = make(prompts=4)
    lengths = sorted(prompt.length for prompt in run.step().prompts)
    assert lengths[0] < lengths[-1]
    shorter = make(prompts=4, max_prompt_length=lengths[-1] - 1).step().prompts
    assert len(shorter) + len(shorter.refused) == 4
    assert 0 < len(shorter.refused) < 4


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"prompts": 0}, "prompts is 0"),
        ({"executor": "fast"}, "executor is 'fast'"),
        ({"schedule": Rollplex}, r"schedule=Rollplex\(\)"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], match: str) -> None:
    """When the run is made."""
    with pytest.raises(ValueError, match=match):
        make(**options)


def test_a_negative_number_of_steps_is_refused() -> None:
    """When it is asked for; none at all is fine."""
    assert list(make().steps(0)) == []
    with pytest.raises(ValueError, match="asking a run for -1 steps"):
        make().steps(-1)


def test_a_run_needs_one_suffix() -> None:
    """It knows its policy from it."""
    made = [phase for phase in phases(tiny()) if phase.writes != "suffix"]
    with pytest.raises(ValueError, match="wanted one Suffix phase"):
        Run(task(), made)


def test_owners_count_shared_storages_once() -> None:
    """The sum over owners is that of the distinct storages; the engine's weights are the policy's."""
    policy = tiny()
    made = phases(policy, loss=GRPO(beta=0.04))
    run = Run(task(), made, prompts=2)
    step = run.step()
    owners = Recorder(Trace(), made, torch.device("cpu")).owners(step).device
    assert "engine.weights" not in owners
    assert owners["policy.weights"] == policy.weights.nbytes
    resources = [r for phase in made for r in (*phase.reads, *phase.mutates)]
    distinct = Resource("all", tuple(t for r in resources for t in r.tensors)).nbytes
    named = {r.name for r in resources}
    assert sum(num for name, num in owners.items() if name in named) == distinct
    assert owners["optimizer.state"] == 2 * policy.weights.nbytes
    assert owners["reference.weights"] == policy.weights.nbytes


def test_memory_is_sampled_as_fields_are_filled() -> None:
    """Boundaries come, gradients stay, and a graph is gone once it was used."""
    run = make()
    run.step()
    names = [set(sample.owners) for sample in run.trace.samples]
    assert any("policy_prefix.tape" in owners for owners in names)
    assert "policy_prefix.tape" not in names[-1]
    assert {"policy_prefix.boundary", "policy_prefix.gradients", "rollout", "rollout.kv"} <= names[-1]
    assert run.trace.peak_bytes() == max(sum(s.owners.values()) for s in run.trace.samples)


def test_it_says_where_it_is_in_a_line() -> None:
    """Task, schedule and next step."""
    run = make()
    run.step()
    assert repr(run).startswith("Run(rows, Serial, next step 1, Trace(measured on ")


def test_gradients_and_weights_agree_with_a_step_made_by_hand() -> None:
    """A run is nothing but its phases, called in order."""
    policies = tiny(), tiny()
    run = Run(task(), phases(policies[0]), prompts=2)
    run.step()
    prefix, decode, reward, suffix, update = phases(policies[1])
    batch = policies[1].prompts(task().rows(2))
    state, rollout = prefix(batch), decode(batch)
    rewards = reward(batch, rollout)
    update(suffix(batch, state, rollout, rewards))
    assert gap(policies[0].snapshot(), policies[1].snapshot()) == 0


def test_a_kl_term_without_a_reference_prefix_is_refused_before_the_first_step() -> None:
    """The reference was given to the suffix, but its prefix is missing."""
    policy = tiny()
    reference = Reference(policy)
    made = [p for p in phases(policy) if p.writes != "suffix"]
    suffix = Suffix(policy, reference, loss=GRPO(beta=0.1))
    with pytest.raises(ValueError, match="reference_prefix"):
        Run(task(), [*made, suffix])
    assert Run(task(), [*made, suffix, Prefix(reference)]).next_index == 0


def test_advice_comes_from_the_run_itself() -> None:
    """Every synchronous schedule is predicted here and there, and the first step is left out once there are others."""
    run = make(schedule=Serial())
    for _ in run.steps(3):
        pass
    advice = run.advise(device="H800")
    assert {"Serial", "Rollplex", "OnePrefill", "Streamed"} <= set(advice.step_s)
    measured = sum(run.trace.step_s(step) for step in (1, 2)) / 2
    assert advice.step_s["Serial"][0] == pytest.approx(measured, rel=0.5)
    assert advice.there == "H800"


def test_advice_needs_a_step() -> None:
    with pytest.raises(ValueError, match="it has made no step yet"):
        make().advise()

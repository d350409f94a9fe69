"""A run within a budget: the numbers of a run without one, and everything where its contract says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policy import checksum, moved, phases, prompts, responses, task, tiny

from rollplex.compare import compare
from rollplex.losses import GRPO
from rollplex.memory.arena import OutOfDeviceMemory
from rollplex.memory.contracts import CONTRACTS
from rollplex.memory.explanation import explain
from rollplex.memory.memory import Memory
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference
from rollplex.run import Run
from rollplex.schedules import OnePrefill, Rollplex, Serial, Streamed

MIB = 2**20
CHUNK = MIB
WEIGHTS = 10_088_448
"""Bytes of the tiny model in float32, in whole pages."""


def managed(
    policy: Policy, reference: Reference, *, chunk_bytes: int | None = CHUNK, tape: Any = "offload"
) -> list[Phase]:
    """Every mechanism on."""
    return [
        Prefix(policy, tape=tape),
        Prefix(reference),
        Decode(policy.engine(), group=3, max_new_tokens=5),
        Reward([checksum]),
        Suffix(policy, reference, loss=GRPO(beta=0.04)),
        Update(policy, lr=1e-3, chunk_bytes=chunk_bytes),
    ]


def make(
    memory: Memory | None, schedule: Any = None, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[Policy, Run]:
    policy = tiny(dtype)
    made = managed(policy, Reference(policy), **options)
    return policy, Run(task(), made, Rollplex() if schedule is None else schedule, prompts=2, memory=memory)


def roomy(**options: Any) -> Memory:
    return Memory(budget_bytes=64 * MIB, pool_bytes=96 * MIB, **options)


def plain(dtype: torch.dtype, steps: int) -> dict[str, torch.Tensor]:
    """Weights after some steps with everything where torch allocates it."""
    policy = tiny(dtype)
    list(Run(task(), phases(policy, loss=GRPO(beta=0.04)), prompts=2).steps(steps))
    return policy.snapshot()


@pytest.fixture(scope="module")
def resident() -> dict[str, torch.Tensor]:
    return plain(torch.float32, 3)


@pytest.mark.parametrize("schedule", [Serial(), Rollplex(), OnePrefill(), Streamed()], ids=repr)
def test_a_run_within_a_budget_ends_bit_for_bit_as_one_without(
    schedule: Any, resident: dict[str, torch.Tensor]
) -> None:
    """With streamed optimizer, offloaded tape and paged reference; residency is proven, and nothing grows."""
    memory = roomy()
    policy, run = make(memory, schedule)
    start = policy.snapshot()
    addresses = [leaf.data_ptr() for leaf in policy.model.leaves.values()]
    rests = []
    for _ in run.steps(3):
        rests.append((memory.arena.owners(), memory.pool.owners(), memory.arena.pages.backed_bytes))
    assert moved(policy, start) > 1e-3
    assert moved(policy, resident) == 0
    assert rests[0] == rests[1] == rests[2]
    assert rests[0][0] == {"policy.weights": WEIGHTS}
    assert rests[0][2] == WEIGHTS
    assert [leaf.data_ptr() for leaf in policy.model.leaves.values()] == addresses
    assert set(run.trace.check_residency().proven) == {contract.name for contract in CONTRACTS}


def test_narrow_weights_end_as_without_a_budget() -> None:
    """Float32 masters on the host, gradients in the weights' type."""
    policy, run = make(roomy(), dtype=torch.bfloat16)
    list(run.steps(2))
    assert moved(policy, plain(torch.bfloat16, 2)) == 0


@pytest.mark.parametrize("executor", ["interleave", "threads"])
def test_the_peak_is_in_the_trace(executor: Any) -> None:
    """Also what comes and goes within a tick: the suffix's activations."""
    policy = tiny(torch.float32)
    memory = roomy()
    run = Run(task(), managed(policy, Reference(policy)), Rollplex(), prompts=2, memory=memory, executor=executor)
    list(run.steps(1))
    peak = max(run.trace.samples, key=lambda sample: sum(sample.owners.values()))
    assert {"policy.weights", "policy.gradients", "reference.weights", "suffix.activations"} <= set(peak.owners)
    assert 3 * WEIGHTS < run.trace.peak_bytes() <= memory.arena.budget_bytes


def test_a_budget_that_is_too_small_raises_where_it_is_exceeded() -> None:
    """In the suffix, which needs gradients beside two models; the owners are named, and the options."""
    _, run = make(Memory(budget_bytes=2 * WEIGHTS + 4 * MIB, pool_bytes=96 * MIB))
    with pytest.raises(OutOfDeviceMemory) as caught:
        list(run.steps(1))
    assert any("phase 'suffix' of step 0" in note for note in caught.value.__notes__)
    assert caught.value.owners["policy.weights"] == WEIGHTS
    assert "May be elsewhere" in str(explain(caught.value))


def test_after_an_error_nothing_is_left_and_the_run_goes_on_with_another_memory(
    resident: dict[str, torch.Tensor],
) -> None:
    """Even while a notebook keeps the traceback; what was finished is there, and the step ends as it would have."""
    small = Memory(budget_bytes=2 * WEIGHTS + 4 * MIB, pool_bytes=96 * MIB)
    policy, run = make(small)
    with pytest.raises(OutOfDeviceMemory) as caught:
        list(run.steps(3))
    assert caught.value.__traceback__ is not None
    assert run.last is not None
    assert {"rollout", "rewards", "policy_prefix", "reference_prefix"} <= set(run.last.filled)
    left = {
        "policy.boundary",
        "reference.boundary",
        "prefix.logprobs",
        "policy.tape",
    }  # the last by what is too small for a slot
    assert set(small.arena.owners()) == {"policy.weights", *left}
    assert torch.is_grad_enabled()
    large = roomy()
    run.use(large)
    assert set(small.arena.owners()) == left, "those are in run.last"
    list(run.steps(3))
    assert small.arena.owners() == {}
    assert moved(policy, resident) == 0


def test_a_run_moves_out_of_its_memory_and_goes_on(resident: dict[str, torch.Tensor]) -> None:
    memory = roomy()
    policy, run = make(memory, tape="keep")
    list(run.steps(1))
    run.use(None)
    assert memory.arena.owners() == {}
    list(run.steps(2))
    assert moved(policy, resident) == 0


def test_what_is_not_released_stays() -> None:
    """The paper's ablations, one keyword each."""
    for options, owner in (({"release_rollout": False}, "engine.kv"), ({"page_reference": False}, "reference.weights")):
        memory = roomy(**options)
        _, run = make(memory)
        list(run.steps(1))
        assert set(memory.arena.owners()) == {"policy.weights", owner}


def test_state_that_is_not_offloaded_is_there_before_the_first_step(resident: dict[str, torch.Tensor]) -> None:
    """And the numbers are the same."""
    memory = roomy()
    policy, run = make(memory, chunk_bytes=None)
    rest = {"policy.optimizer": memory.arena.owners()["policy.optimizer"], "policy.weights": WEIGHTS}
    assert 2 * WEIGHTS * 0.99 < rest["policy.optimizer"] < 2 * WEIGHTS * 1.01
    list(run.steps(3))
    assert memory.arena.owners() == rest
    assert moved(policy, resident) == 0


@pytest.mark.parametrize("chunk_bytes", [None, CHUNK])
def test_schedules_compare_within_a_memory(chunk_bytes: int | None) -> None:
    """The run is put back as it was, its optimizer too."""
    memory = roomy()
    policy, run = make(memory, chunk_bytes=chunk_bytes)
    list(run.steps(1))
    before, rest = policy.snapshot(), memory.arena.owners()
    made = compare(run, Serial(), Rollplex(), steps=1)
    assert made.difference == {"Serial": 0.0, "Rollplex": 0.0}
    assert moved(policy, before) == 0
    assert memory.arena.owners() == rest
    list(run.steps(2))
    assert moved(policy, plain(torch.float32, 3)) == 0


def test_phases_run_by_hand_within_a_memory() -> None:
    """What they use is there while they run: a step by hand is a step."""
    ends = []
    for memory in (roomy(), None):
        policy = tiny(torch.float32)
        reference = Reference(policy)
        made = managed(policy, reference, tape="offload" if memory else "keep")
        prefix, frozen, _, _, suffix, update = made
        Run(task(), made, prompts=2, memory=memory)
        batch = prompts("one image")
        state, other = prefix(batch), frozen(batch)
        update(suffix(batch, state, *responses(policy, batch), other))
        ends.append(policy.snapshot())
        if memory is not None:
            assert "reference.weights" not in memory.arena.owners()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_model_in_a_memory_is_saved_like_any(tmp_path: Path) -> None:
    policy, run = make(roomy())
    list(run.steps(1))
    policy.ingest.save_pretrained(tmp_path)
    policy.save_pretrained(tmp_path)
    assert moved(Policy.from_pretrained(tmp_path), policy.snapshot()) == 0


def test_a_memory_serves_one_policy() -> None:
    memory = roomy()
    make(memory)
    with pytest.raises(ValueError, match=r"moving policy.weights into a memory: it holds another's"):
        make(memory)


def test_a_memory_without_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match="budget_bytes is 5 and pool_bytes is 0; give both"):
        Memory(budget_bytes=5)

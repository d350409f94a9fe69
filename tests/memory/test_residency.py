"""Real runs are held to the contracts: each of the ten objects is proven, with every executor, and a breach is named."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import pytest
import torch
from tiny_policy import checksum, task, tiny

from rollplex.boundary import PrefixState
from rollplex.losses import GRPO
from rollplex.memory.contracts import CONTRACTS
from rollplex.memory.lifetime import Lifetimes, lifetimes
from rollplex.memory.memory import Memory
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase, Tick
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Reference
from rollplex.prompts import PromptBatch
from rollplex.run import Run
from rollplex.schedules import Rollplex, Streamed

MIB = 2**20
SIZES: dict[str, Any] = {"budget_bytes": 64 * MIB, "pool_bytes": 96 * MIB}
both = pytest.mark.parametrize("executor", ["interleave", "threads"])


class Slow(Memory):
    """What comes and goes takes its time, in which another lane begins many ticks."""

    def begin(self, phase: str) -> None:
        super().begin(phase)
        time.sleep(0.02)

    def end(self, phase: str) -> None:
        time.sleep(0.02)
        super().end(phase)


class Keeps(Memory):
    """Prefixes stay until their step is over."""

    def spends(self, phase: str) -> list[str]:
        return []


class Forgets(Phase):
    """A prefix whose part of the log-probabilities is gone when it ends."""

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix

    @property
    def name(self) -> str:
        return self.prefix.name

    @property
    def writes(self) -> str:
        return self.prefix.writes

    def move_in(self, memory: Memory | None) -> None:
        super().move_in(memory)
        self.prefix.move_in(memory)

    def run(self, prompts: PromptBatch) -> Generator[Tick, None, PrefixState]:
        state = yield from self.prefix.run(prompts)
        for boundary in state.boundaries:
            boundary.charges[-1].free()
        return state


def held(
    memory: Memory, *, executor: Any = "interleave", schedule: Any = None, forgets: bool = False, steps: int = 1
) -> Lifetimes:
    """Steps held to the contracts."""
    policy = tiny(torch.float32)
    reference = Reference(policy)
    prefixes = [Prefix(policy, tape="offload"), Prefix(reference)]
    made: list[Phase] = [
        *([Forgets(prefix) for prefix in prefixes] if forgets else prefixes),
        Decode(policy.engine(), group=3, max_new_tokens=16),
        Reward([checksum]),
        Suffix(policy, reference, loss=GRPO(beta=0.04)),
        Update(policy, lr=1e-3, chunk_bytes=MIB),
    ]
    run = Run(task(), made, Rollplex() if schedule is None else schedule, prompts=2, memory=memory, executor=executor)
    list(run.steps(steps))
    return lifetimes(run.trace)


@both
@pytest.mark.parametrize("schedule", [Rollplex(), Streamed()], ids=repr)
@pytest.mark.parametrize("memory", [Memory, Slow])
def test_every_object_is_proven(executor: Any, schedule: Any, memory: Any) -> None:
    """Also while another lane's ticks begin between an object's coming and its first use, or its last and its leaving."""
    found = held(memory(**SIZES), executor=executor, schedule=schedule, steps=2)
    assert found.check().unseen == ()
    assert set(found.proven) == {contract.name for contract in CONTRACTS}


@both
def test_a_prefix_that_is_kept_too_long_is_named(executor: Any) -> None:
    """Boundaries, and what log-probabilities are made of: as the update begins."""
    found = held(Keeps(**SIZES), executor=executor)
    assert {(v.contract.name, v.kind, v.tick.phase, v.tick.label) for v in found.violations} == {
        (name, "late", "update", "admit")
        for name in ("actor boundary KV", "reference boundary KV", "prefix log-probabilities")
    }
    assert len(found.proven) == 7


def test_log_probabilities_that_are_gone_before_their_suffix_are_named() -> None:
    found = held(Memory(**SIZES), forgets=True)
    assert {(v.contract.name, v.kind, v.tick.phase) for v in found.violations} == {
        ("prefix log-probabilities", "absent", "suffix")
    }
    assert "prefix log-probabilities (prefix.logprobs) is used and was not on the device" in str(found.first)


@both
def test_a_rollout_that_stays_is_named(executor: Any) -> None:
    found = held(Memory(**SIZES, release_rollout=False), executor=executor)
    assert {v.contract.name for v in found.violations} == {"rollout KV"}

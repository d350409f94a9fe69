"""An engine with a copy of the weights samples as the sharing one does, from other storage."""

from __future__ import annotations

from typing import Any

import torch
from tiny_policy import prompts, shift, tiny

from rollplex.engines.copied_engine import CopiedEngine
from rollplex.memory.memory import Memory
from rollplex.phases.decode import Decode

BATCH = prompts("text only")


def tokens(engine: Any) -> list[torch.Tensor]:
    return [group.tokens for group in Decode(engine, group=2, max_new_tokens=4)(BATCH).groups]


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_it_samples_what_the_sharing_engine_samples() -> None:
    policy = tiny()
    engine = CopiedEngine(policy)
    assert not engine.weights.overlaps(policy.weights)
    assert same(tokens(engine), tokens(policy.engine()))


def test_it_takes_an_update_over_at_the_next_rollout() -> None:
    policy = tiny()
    engine = CopiedEngine(policy)
    before = tokens(engine)
    shift(policy, 0.3)
    assert same(tokens(engine), before), "without a new version nothing is copied"
    policy.version += 1
    assert engine.version == 1
    assert same(tokens(engine), tokens(policy.engine()))
    assert not same(tokens(engine), before)


def test_its_copy_moves_into_the_policys_memory() -> None:
    """At its first rollout there, and stays."""
    policy = tiny()
    engine, memory = CopiedEngine(policy), Memory(budget_bytes=2**26, pool_bytes=2**20)
    outside = tokens(engine)
    policy.move_in(memory)
    assert same(tokens(engine), outside)
    memory.rest()
    owners = memory.arena.owners()
    assert owners == {"engine.weights": owners["policy.weights"], "policy.weights": owners["policy.weights"]}

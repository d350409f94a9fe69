"""What a suffix is charged for is what torch allocates for it: saved tensors, recomputed layers, gradients on their way."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_workloads import SMALL
from torch.profiler import ProfilerActivity, profile

from rollplex.bench import memory
from rollplex.bench.scaled import scaled_policy
from rollplex.memory.activations import suffix_activations, suffix_workspace
from rollplex.memory.memory import Memory
from rollplex.memory.predicted import predicted
from rollplex.phases.suffix import Suffix

MIB = 2**20
SIZE = memory.Size(hidden=128, prompts=2, group=6, max_new_tokens=32, chunk_bytes=2**18)


def allocated(made: Any) -> int:
    """The most bytes that torch had allocated at once, above what there was before."""
    events = [event for event in made.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("checkpointed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("rows", [2, 12])
def test_a_suffix_is_charged_for_what_torch_allocates(
    checkpointed: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few responses most of it is weights' gradients, with many it is the responses' own."""
    monkeypatch.setattr(memory, "DEFAULT", SMALL)
    policy, within = scaled_policy(128), Memory(budget_bytes=128 * MIB, pool_bytes=128 * MIB)
    made = SIZE.phases(policy, memory.FULL)
    assert isinstance(made[4], Suffix)
    made[4] = suffix = Suffix(policy, made[4].reference, loss=made[4].loss, microbatch=rows, checkpointed=checkpointed)
    SIZE.run(made, within)
    prefix, frozen, decode, reward = made[:4]
    batch = policy.prompts(SMALL.task.rows(2))
    rollout = decode(batch)
    inputs = batch, prefix(batch), rollout, reward(batch, rollout), frozen(batch)
    within.arena.fullest()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        suffix(*inputs)
    charged = within.arena.fullest()
    saved, beside = charged["suffix.activations"], charged["suffix.workspace"]
    assert saved + beside == pytest.approx(allocated(seen), rel=0.12)
    assert saved == pytest.approx(suffix_activations(policy.model, rows, 32, checkpointed=checkpointed), rel=0.02)
    assert beside == suffix_workspace(policy.model, rows, 32)
    assert saved < 0.97 * allocated(seen), "the control: saved tensors alone are not all of it"


def test_a_graph_without_a_formula_is_not_predicted() -> None:
    policy = scaled_policy(64)
    made = SIZE.phases(policy, memory.FULL, tape="keep")
    with pytest.raises(ValueError, match="its prefix has tape='keep', whose graph has no formula"):
        predicted(made, policy.prompts(SMALL.task.rows(2)))

"""Frozen weights: nothing moves them, and the others learn as they would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_optim_streamed import OPTIONS, steps
from tiny_policy import gap, prompts, responses, tiny, train

from rollplex.optim import AdamW, Optimizer
from rollplex.optim_streamed import StreamedAdamW
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy

TOWER = "model.visual"


def optimizer(policy: Policy, *, streamed: bool) -> Optimizer:
    return StreamedAdamW(policy, chunk_bytes=2**20, **OPTIONS) if streamed else AdamW(policy, **OPTIONS)


def moved(policy: Policy, before: dict[str, torch.Tensor]) -> tuple[bool, bool]:
    """Whether any weight of the tower moved, and any of the rest."""
    changed = {name for name, now in policy.snapshot().items() if not torch.equal(before[name], now)}
    return any(name.startswith(TOWER) for name in changed), any(not name.startswith(TOWER) for name in changed)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neither_decay_nor_momentum_moves_them(dtype: torch.dtype, streamed: bool) -> None:
    """With moments of earlier steps, a decay, and gradients that nobody should read."""
    policy = tiny(dtype)
    adam = optimizer(policy, streamed=streamed)
    before = policy.snapshot()
    steps(policy, adam, 0, 1)
    assert moved(policy, before) == (True, True), "the control: before, they learned"
    policy.freeze(TOWER)
    before = policy.snapshot()
    steps(policy, adam, 2, 3)
    assert moved(policy, before) == (False, True)
    assert all(leaf.grad is not None for leaf in policy.model.leaves.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_both_optimizers_agree_and_load_each_others_state(dtype: torch.dtype) -> None:
    """Frozen from the first step: the state has its place all the same."""
    found: list[tuple[Policy, Optimizer]] = []
    for streamed in (False, True):
        policy = tiny(dtype)
        policy.freeze(TOWER)
        found.append((policy, optimizer(policy, streamed=streamed)))
        steps(*found[-1], 0, 1)
    (one, adam), (two, streaming) = found
    saved: list[dict[str, Any]] = [adam.state_dict(), streaming.state_dict()]
    ours, theirs = (each["adam"]["state"] for each in saved)
    assert ours.keys() == theirs.keys()
    for place, state in ours.items():
        assert all(torch.equal(state[name], theirs[place][name]) for name in ("step", "exp_avg", "exp_avg_sq"))
    adam.load_state_dict(saved[1])
    streaming.load_state_dict(saved[0])
    for policy, each in found:
        steps(policy, each, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.weights.tensors, two.weights.tensors, strict=True))


@pytest.mark.parametrize("tape", ["keep", "recompute", "checkpoint"])
def test_the_others_gradients_stay_as_they_were(tape: str) -> None:
    """float64, every kind of tape; the frozen ones' are zero, which the whole model's are not."""
    policy, batch = tiny(), prompts("one image")
    made = responses(policy, batch)
    _, whole = train(policy, batch, *made, prefix={"tape": tape})
    policy.zero_gradients()
    policy.freeze(TOWER)
    _, part = train(policy, batch, *made, prefix={"tape": tape})
    tower = {name for name in whole if name.startswith(TOWER)}
    assert not any(part[name].any() for name in tower)
    assert any(whole[name].any() for name in tower)
    assert (
        gap({n: g for n, g in whole.items() if n not in tower}, {n: g for n, g in part.items() if n not in tower})
        < 1e-12
    )


def test_a_module_that_was_frozen_is_refused() -> None:
    """It holds views of what is trained, and freezing those would be without effect."""
    policy, batch = tiny(), prompts("one image")
    made = responses(policy, batch)
    update = Update(policy, lr=1e-3)
    policy.model.module.get_submodule(TOWER).requires_grad_(False)
    stats = Suffix(policy)(batch, Prefix(policy)(batch), *made)
    before = policy.snapshot()
    with pytest.raises(
        RuntimeError, match=r"requires_grad of \d+ of the module's parameters was changed.*policy.freeze"
    ):
        update(stats)
    assert all(torch.equal(before[name], now) for name, now in policy.snapshot().items())
    policy.freeze(TOWER)
    update(stats)
    assert policy.version == 1


def test_a_part_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"freezing 'visual': no weight's name begins like that. There are .*model.visual"
    ):
        tiny().freeze("visual")

"""Frozen weights: nothing moves them, and the others learn as they would."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_optim_streamed import OPTIONS, steps
from tiny_policy import gap, prompts, responses, tiny, train

from rollplex.optim import AdamW, Optimizer, gradient_norm
from rollplex.optim_streamed import StreamedAdamW
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy

TOWER, TEXT = "model.visual", "model.language_model"


def optimizer(policy: Policy, *, streamed: bool) -> Optimizer:
    return StreamedAdamW(policy, chunk_bytes=2**20, **OPTIONS) if streamed else AdamW(policy, **OPTIONS)


def tower_and_rest_moved(policy: Policy, before: dict[str, torch.Tensor]) -> tuple[bool, bool]:
    """Whether any weight of the tower moved, and any of the rest."""
    changed = {name for name, now in policy.snapshot().items() if not torch.equal(before[name], now)}
    return any(name.startswith(TOWER) for name in changed), any(not name.startswith(TOWER) for name in changed)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neither_decay_nor_momentum_moves_them(dtype: torch.dtype, streamed: bool) -> None:
    """With moments of earlier steps, a decay, and gradients left over in the frozen buffers."""
    policy = tiny(dtype)
    buffers = policy.gradients.storages()
    adam = optimizer(policy, streamed=streamed)
    before = policy.snapshot()
    steps(policy, adam, 0, 1)
    assert tower_and_rest_moved(policy, before) == (True, True), "the control: before, they learned"
    policy.freeze(TOWER)
    before = policy.snapshot()
    steps(policy, adam, 2, 3)
    assert tower_and_rest_moved(policy, before) == (False, True)
    assert policy.gradients.storages() == buffers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_both_optimizers_agree_and_load_each_others_state(dtype: torch.dtype) -> None:
    """Frozen from the first step: the state has its place all the same."""
    policies, saved = [tiny(dtype), tiny(dtype)], list[dict[str, Any]]()
    for policy, streamed in zip(policies, (False, True), strict=True):
        policy.freeze(TOWER)
        before, adam = policy.snapshot(), optimizer(policy, streamed=streamed)
        steps(policy, adam, 0, 1)
        assert tower_and_rest_moved(policy, before) == (False, True)
        saved.append(adam.state_dict())
    ours, theirs = (each["adam"]["state"] for each in saved)
    assert ours.keys() == theirs.keys()
    for place, name in enumerate(policies[0].model.leaves):
        assert all(torch.equal(ours[place][part], theirs[place][part]) for part in ("step", "exp_avg", "exp_avg_sq"))
        assert bool(ours[place]["exp_avg"].any()) is not name.startswith(TOWER)
    for policy, streamed in zip(policies, (False, True), strict=True):
        fresh = optimizer(policy, streamed=streamed)
        fresh.load_state_dict(saved[not streamed])
        steps(policy, fresh, 2)
    assert all(torch.equal(a, b) for a, b in zip(*(p.weights.tensors for p in policies), strict=True))
    forgetful = tiny(dtype)
    forgetful.restore(policies[0].snapshot(), 0)
    steps(forgetful, optimizer(forgetful, streamed=False), 2)
    assert not torch.equal(forgetful.weights.tensors[0], policies[0].weights.tensors[0]), "the control: moments count"


PARTS = {
    "tower": (TOWER,),
    "embedding": (f"{TEXT}.embed_tokens",),
    "text": (TEXT,),
    "embedding and first layer": (f"{TEXT}.embed_tokens", f"{TEXT}.layers.0"),
    "embedding and first attention": (
        f"{TEXT}.embed_tokens",
        f"{TEXT}.layers.0.self_attn",
        f"{TEXT}.layers.0.input_layernorm",
    ),
    "last layer": (f"{TEXT}.layers.3", f"{TEXT}.norm"),
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("tape", ["keep", "recompute", "checkpoint"])
def test_the_others_gradients_stay_as_they_were(parts: tuple[str, ...], tape: str) -> None:
    """float64; the frozen ones' are zero, which the whole model's are not.

    Where the text is frozen below, no gradient flows through a response's tokens, and it flows to the picture all the same.
    """
    policy, batch = tiny(), prompts("mixed")
    made = responses(policy, batch)
    checkpointed = tape == "checkpoint"
    _, whole = train(policy, batch, *made, prefix={"tape": tape}, checkpointed=checkpointed)
    policy.zero_gradients()
    policy.freeze(*parts)
    _, part = train(policy, batch, *made, prefix={"tape": tape}, checkpointed=checkpointed)
    frozen = {name for name, parameter in policy.model.module.named_parameters() if not parameter.requires_grad}
    assert any(whole[name].any() for name in frozen)
    assert not any(part[name].any() for name in frozen)
    assert (
        gap({n: g for n, g in whole.items() if n not in frozen}, {n: g for n, g in part.items() if n not in frozen})
        < 1e-12
    )


def test_what_a_suffix_left_there_clips_nothing() -> None:
    """Frozen between suffix and update."""
    policy, batch = tiny(), prompts("one image")
    train(policy, batch, *responses(policy, batch))
    before = gradient_norm(policy)
    policy.freeze(TOWER)
    rest = torch.stack([g.norm() for n, g in policy.model.named_gradients() if not n.startswith(TOWER)]).norm()
    assert gradient_norm(policy) == pytest.approx(float(rest), rel=1e-12)
    assert gradient_norm(policy) < before
    policy.freeze(TEXT)
    assert gradient_norm(policy) == 0


def test_a_module_that_was_frozen_is_refused() -> None:
    """It holds views of what is trained, and freezing those would be without effect."""
    policy, batch = tiny(), prompts("one image")
    made = responses(policy, batch)
    update = Update(policy, lr=1e-3)
    policy.model.module.get_submodule(TOWER).requires_grad_(False)
    stats = Suffix(policy)(batch, Prefix(policy)(batch), *made)
    before = policy.snapshot()
    with pytest.raises(RuntimeError, match=r"disagree on what is frozen.*False in the module and True.*policy.freeze"):
        update(stats)
    assert all(torch.equal(before[name], now) for name, now in policy.snapshot().items())
    assert policy.version == 0
    policy.freeze(TOWER)
    update(stats)
    assert policy.version == 1


def test_the_module_shows_what_is_frozen() -> None:
    policy = tiny()
    policy.freeze(TOWER)
    policy.expect_module_alike()
    shown = {name for name, parameter in policy.model.module.named_parameters() if not parameter.requires_grad}
    assert shown == {name for name, _ in policy.model.module.named_parameters() if name.startswith(TOWER)}


@pytest.mark.parametrize("part", ["visual", "model.vis", f"{TEXT}.layers.0.self_attn.q_proj", "lm_head", ""])
def test_a_part_that_is_not_there_freezes_nothing(part: str) -> None:
    """Not even the parts before it."""
    policy = tiny()
    with pytest.raises(ValueError, match=r"freezing '.*': no weight has this name.* begin with model.*, model.visual"):
        policy.freeze(TOWER, part)
    assert all(leaf.requires_grad for leaf in policy.model.leaves.values())


def test_a_copy_trains_by_itself_and_stays_frozen(tmp_path: Path) -> None:
    """What it saves is what it trained; the first one's weights are not touched."""
    policy = tiny()
    policy.freeze(TOWER)
    policy.version = 3
    copied, before = deepcopy(policy), policy.snapshot()
    batch = prompts("one image")
    stats, _ = train(copied, batch, *responses(copied, batch))
    Update(copied, lr=1e-2)(stats)
    assert copied.version == 4
    assert tower_and_rest_moved(copied, before) == (False, True)
    assert all(torch.equal(before[name], now) for name, now in policy.snapshot().items())
    saved = Policy.from_pretrained(copied.save_pretrained(tmp_path), dtype=torch.float64).snapshot()
    assert all(torch.equal(saved[name], now) for name, now in copied.snapshot().items())

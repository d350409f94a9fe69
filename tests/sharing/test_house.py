"""A policy that lives in a shared region trains, decodes and saves as one that does not, and the region has its weights."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import tiny_policy
import torch

from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy
from rollplex.sharing.descriptors import TorchTrainer
from rollplex.sharing.devices import Devices
from rollplex.sharing.house import house

ROW_PARALLEL = "model.language_model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def plain() -> Policy:
    return tiny_policy.tiny()


@pytest.fixture
def devices(plain: Policy) -> Iterator[Devices]:
    with Devices(plain, TorchTrainer(), train_tp=2, rollout_tp=1) as made:
        yield made


def step(policy: Policy) -> None:
    batch = tiny_policy.prompts("one image")
    rollout, rewards = tiny_policy.responses(policy, batch)
    Update(policy, lr=1e-3)(Suffix(policy)(batch, Prefix(policy)(batch), rollout, rewards))


def test_a_step_writes_the_region_and_equals_a_step_without_one(plain: Policy, devices: Devices) -> None:
    housed = devices.policy(0, plain)
    assert housed.model.leaves[ROW_PARALLEL].stride() == (1, 192), "stored by columns, for the trainer's slices"
    before = devices.bindings[0].engine[ROW_PARALLEL].clone()
    step(housed)
    step(plain)
    assert torch.equal(devices.bindings[0].engine[ROW_PARALLEL], housed.model.leaves[ROW_PARALLEL])
    assert (devices.bindings[0].engine[ROW_PARALLEL] - before).abs().max() > 1e-4
    theirs = dict(plain.model.module.named_parameters())
    for name, parameter in housed.model.module.named_parameters():
        if "visual" not in name:  # float32 inside of the tower
            assert torch.allclose(parameter, theirs[name], atol=1e-9), name


def test_its_engine_draws_what_the_plain_one_draws(plain: Policy, devices: Devices) -> None:
    batch = tiny_policy.prompts("one image")
    ours, theirs = (Decode(p.engine(), group=2, max_new_tokens=6)(batch) for p in (devices.policy(0, plain), plain))
    for one, two in zip(ours.groups, theirs.groups, strict=True):
        assert torch.equal(one.lengths, two.lengths)
        assert torch.allclose(one.logprobs, two.logprobs, atol=1e-12)


def test_it_saves_an_ordinary_checkpoint(plain: Policy, devices: Devices, tmp_path: Path) -> None:
    loaded = Policy.from_pretrained(devices.policy(0, plain).save_pretrained(tmp_path), dtype=torch.float64)
    assert all(torch.equal(leaf, plain.model.leaves[name]) for name, leaf in loaded.model.leaves.items())


def test_moving_in_keeps_the_policys_numbers_and_the_check_knows_it(plain: Policy, devices: Devices) -> None:
    other = tiny_policy.shift(deepcopy(plain))
    held = house(other.model, devices.bindings[1])
    devices.bindings[1].check("engine", held)
    assert torch.equal(devices.bindings[1].engine[ROW_PARALLEL], other.model.leaves[ROW_PARALLEL])
    assert not torch.equal(devices.bindings[1].engine[ROW_PARALLEL], plain.model.leaves[ROW_PARALLEL])


def test_a_shard_is_no_whole_policy(plain: Policy) -> None:
    with (
        Devices(plain, TorchTrainer(), train_tp=2, rollout_tp=2) as divided,
        pytest.raises(ValueError, match=r"it has one shard of 2\. Use scorer\(\)"),
    ):
        divided.policy(0, plain)

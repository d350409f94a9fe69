"""Over real processes: one copy of the weights, and one update of a tensor-parallel trainer that the engine reads there.

Each rehearsal is made once and looked at from several sides.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from sharing.wide_policy import wide

from rollplex.policy import Policy
from rollplex.sharing.descriptors import MegatronTrainer, TorchTrainer
from rollplex.sharing.rehearsal import Rehearsal, rehearse
from rollplex.verify import cases

pytestmark = pytest.mark.timeout(1800)

LIMIT = 1e-9
SETTINGS = {
    "torch, TP 2 over 1, the shipped model": (2, 1, TorchTrainer()),
    "torch, TP 4 over 2, heads replicated": (4, 2, TorchTrainer()),
    "megatron, TP 2 over 1, attention interleaved": (2, 1, MegatronTrainer(min_block_bytes=0)),
}
NAMES = list(SETTINGS)
TORCH = NAMES[:2]


@cache
def rehearsal(name: str) -> Rehearsal:
    train_tp, rollout_tp, trainer = SETTINGS[name]
    policy = Policy.tiny(dtype=torch.float64) if train_tp == 2 else wide()
    prompts = cases.prompts(policy, "one image")
    rollout, rewards = cases.responses(policy, prompts, 2)
    return rehearse(
        policy, prompts, rollout, rewards, train_tp=train_tp, rollout_tp=rollout_tp, trainer=trainer, timeout_s=900.0
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_side_reads_what_the_other_wrote_in_another_process(name: str) -> None:
    found = rehearsal(name)
    assert found.num_seen == found.num_shared > 100
    assert found.num_private_seen == 0, "the control: what is copied is not seen before it is copied"


@pytest.mark.parametrize("name", NAMES)
def test_one_update_equals_that_of_a_single_process_on_every_device(name: str) -> None:
    found = rehearsal(name)
    assert found.update_error <= LIMIT
    assert found.moved > 1e-4, "the control: an update that changes nothing would be equal too"


@pytest.mark.parametrize("name", NAMES)
def test_the_next_logprobs_are_those_of_a_model_loaded_from_disk(name: str) -> None:
    found = rehearsal(name)
    assert found.logprob_error <= LIMIT
    assert found.stale_error > 1e-3, "the control: without the update they would be off"
    assert found.versions == (1,) * found.train_tp


@pytest.mark.parametrize("name", TORCH)
def test_a_torch_native_trainer_copies_nothing(name: str) -> None:
    found = rehearsal(name)
    assert found.num_private == 0
    assert [u.published.copied_bytes for u in found.updates] == [0] * found.train_tp
    published = [tick.label for tick in found.trace.ticks if tick.phase == "publish"]
    assert len(published) == found.train_tp
    assert all("version 1: 0 bytes copied" in label for label in published)


def test_an_interleaved_attention_is_copied_and_nothing_else() -> None:
    found = rehearsal(NAMES[2])
    policy = Policy.tiny(dtype=torch.float64)
    qkv = sum(leaf.nbytes for name, leaf in policy.model.leaves.items() if "language" in name and "qkv" in name)
    assert found.num_private == 2 * 2 * 4, "weight and bias of four layers on two ranks"
    assert [u.published.copied_bytes for u in found.updates] == [qkv // 2] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_device_receives_what_it_lacks_of_its_shard(name: str) -> None:
    found = rehearsal(name)
    for update in found.updates:
        published = update.published
        assert 0 < published.received_bytes < published.shared_bytes
    assert sum(u.published.received_bytes for u in found.updates) == sum(u.published.sent_bytes for u in found.updates)


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_took_the_same_step(name: str) -> None:
    found = rehearsal(name)
    assert len({update.grad_norm for update in found.updates}) == 1
    assert found.updates[0].grad_norm > 0


def test_a_frozen_policy_is_refused() -> None:
    """The tensor-parallel trainer trains all weights: the comparison would be of two different updates."""
    policy = Policy.tiny(dtype=torch.float64)
    policy.freeze("model.visual")
    prompts = cases.prompts(policy, "one image")
    rollout, rewards = cases.responses(policy, prompts, 2)
    with pytest.raises(ValueError, match="36 of the policy's weights are frozen"):
        rehearse(policy, prompts, rollout, rewards, train_tp=2, rollout_tp=1)

"""What is shared is told by addresses: one storage, its transpose, a copy, a stale copy, and what has no partner."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import tiny_policy
import torch

from rollplex.engines.engine import Engine
from rollplex.engines.torch_engine import TorchEngine
from rollplex.policy import Policy
from rollplex.resource import Resource
from rollplex.sharing.descriptors import MegatronTrainer, TorchTrainer
from rollplex.sharing.devices import Devices
from rollplex.sharing.inspection import Inspection, inspect, inspect_binding


@pytest.fixture
def policy() -> Policy:
    return tiny_policy.tiny()


@dataclass
class Holding(TorchEngine):
    """An engine that says which tensors it reads."""

    tensors: tuple[torch.Tensor, ...]

    @property
    def weights(self) -> Resource:
        return Resource("engine.weights", self.tensors)


def states(found: Inspection) -> set[str]:
    return {share.state for share in found.shares}


def test_the_built_in_engine_shares_everything(policy: Policy) -> None:
    found = inspect(policy, policy.engine())
    assert states(found) == {"shared"}
    assert found.held_bytes == policy.weights.nbytes
    assert found.naive_bytes == 2 * policy.weights.nbytes
    assert len(found.shares) == len(policy.model.fused.places)


def test_bytes_of_parameters_add_up_to_the_weights(policy: Policy) -> None:
    found = inspect(policy, policy.engine())
    assert sum(share.nbytes for share in found.shares) == policy.weights.nbytes


def test_views_of_parts_are_shared_too(policy: Policy) -> None:
    leaves = policy.model.leaves.values()
    found = inspect(policy, Holding(tuple(part for leaf in leaves for part in leaf.detach().chunk(2))))
    assert states(found) == {"shared"}


def copies(policy: Policy) -> tuple[torch.Tensor, ...]:
    return tuple(leaf.detach().clone() for leaf in policy.model.leaves.values())


@pytest.mark.parametrize("backwards", [False, True])
def test_an_engine_with_a_copy_of_all_costs_twice(policy: Policy, backwards: bool) -> None:
    found = inspect(policy, Holding(copies(policy)[:: -1 if backwards else 1]))
    assert states(found) == {"copied"}
    assert found.held_bytes == found.naive_bytes == 2 * policy.weights.nbytes
    assert found.shared_share == 0
    assert not any(share.note for share in found.shares)


def test_a_copy_from_before_an_update_is_stale(policy: Policy) -> None:
    engine = Holding(copies(policy))
    tiny_policy.shift(policy)
    found = inspect(policy, engine)
    assert states(found) == {"copied"}
    assert all("stale" in share.note for share in found.shares)


def test_one_replaced_parameter_is_named(policy: Policy) -> None:
    name = "model.language_model.layers.1.mlp.down_proj.weight"
    tensors = {n: leaf.detach() for n, leaf in policy.model.leaves.items()}
    tensors[name] = tensors[name].clone()
    found = inspect(policy, Holding(tuple(tensors.values())))
    assert [share.name for share in found.shares if share.state == "copied"] == [name]
    assert found.held_bytes == policy.weights.nbytes + tensors[name].nbytes


def test_what_only_one_side_has_is_unmatched(policy: Policy) -> None:
    *most, last = (leaf.detach() for leaf in policy.model.leaves.values())
    found = inspect(policy, Holding((*most, torch.full((3, 5), 7.0))))
    unmatched = {share.name: share.nbytes for share in found.shares if share.state == "unmatched"}
    assert unmatched["engine.own"] == 60
    assert sum(unmatched.values()) == last.nbytes + 60


def test_a_policy_in_a_shared_region_is_partly_transposed(policy: Policy) -> None:
    with Devices(policy, TorchTrainer(), train_tp=2, rollout_tp=1) as devices:
        housed = devices.policy(0, policy)
        found = inspect(housed, housed.engine())
    transposed = {share.name.split(".")[-2] for share in found.shares if share.state == "transposed"}
    assert transposed == {"o_proj", "down_proj"}
    assert found.shared_share == 1


def test_a_binding_says_what_is_copied_and_why(policy: Policy) -> None:
    with Devices(policy, MegatronTrainer(), train_tp=2, rollout_tp=1) as devices:
        found = inspect_binding(devices.bindings[0])
        region = devices.pairings[0].nbytes
    copied = [share for share in found.shares if share.state == "copied"]
    assert {share.name.split(".")[-2] for share in copied} == {"linear_qkv", "linear_fc1"}
    assert all("runs" in share.note for share in copied)
    assert found.held_bytes <= region + found.nbytes("copied") < found.naive_bytes


def test_an_engine_is_what_the_protocol_says(policy: Policy) -> None:
    engine: Engine = Holding(copies(policy))
    assert engine.weights.nbytes == policy.weights.nbytes

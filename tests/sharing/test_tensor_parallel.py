"""Shards in one process compute what the whole model does, whoever laid them out, and read the region's bytes."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from sharing.wide_policy import wide

from rollplex.policy import Policy
from rollplex.sharing.checkpoint import collect, fill
from rollplex.sharing.descriptors import Descriptor, MegatronTrainer, TorchTrainer
from rollplex.sharing.devices import Devices, whole
from rollplex.sharing.ranks import Ranks
from rollplex.sharing.tensor_parallel import TensorParallel, TextShard
from rollplex.verify import cases, plain

TOLERANCE = 1e-12


def logprobs(model: TensorParallel, policy: Policy, case: str = "mixed") -> torch.Tensor:
    batch = cases.prompts(policy, case)
    rollout, _ = cases.responses(policy, batch, 1)
    groups = zip(batch, rollout.groups, strict=True)
    return torch.cat([model.logprobs(prompt, group.tokens[0], group.sampling) for prompt, group in groups])


@torch.no_grad()
def test_one_shard_is_the_whole_model() -> None:
    """Against transformers' own forward, pictures and videos included."""
    policy = deepcopy(wide())
    plain.widen(policy.model.module)
    batch = cases.prompts(policy, "mixed")
    for prompt, group in zip(batch, cases.responses(policy, batch, 1)[0].groups, strict=True):
        theirs = plain.logprobs(policy.model.module, prompt, group.tokens[0], group.sampling)
        ours = whole(policy).logprobs(prompt, group.tokens[0], group.sampling)
        assert torch.allclose(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rollout_tp", [2, 4])
@torch.no_grad()
def test_an_engines_shards_score_as_the_whole_model(rollout_tp: int) -> None:
    policy = wide()
    with Devices(policy, TorchTrainer(), train_tp=4, rollout_tp=rollout_tp) as devices:
        for replica in range(devices.num_replicas):
            found = logprobs(devices.scorer(replica, policy), policy)
            assert torch.allclose(found, logprobs(whole(policy), policy), atol=TOLERANCE)


@torch.no_grad()
def test_an_engine_reads_the_region_and_nothing_else() -> None:
    policy = wide()
    with Devices(policy, TorchTrainer(), train_tp=4, rollout_tp=2) as devices:
        scorer = devices.scorer(0, policy)
        before = logprobs(scorer, policy)
        for binding in devices.bindings[:1]:
            binding.trainer["model.language_model.layers.1.mlp.up_proj.weight"].mul_(2.0)
        assert (logprobs(scorer, policy) - before).abs().max() > 1e-3
        assert torch.equal(logprobs(devices.scorer(1, policy), policy), before), (
            "the other replica has devices of its own"
        )


@pytest.mark.parametrize("trainer", [TorchTrainer(), MegatronTrainer()], ids=lambda t: type(t).__name__)
def test_gradients_of_shards_are_the_whole_models(trainer: Descriptor) -> None:
    policy = wide()
    whole_gradients = gradients_of_the_whole(policy)
    with Devices(policy, trainer, train_tp=2, rollout_tp=1) as devices:
        held = [(pairing.train, own) for pairing, own in zip(devices.pairings, shards_of(devices, policy), strict=True)]
        text, eps = devices.shape.text, policy.model.text.norm.eps
        shards = [TextShard.of(own, text, tp=2, rank=rank, eps=eps) for rank, (_, own) in enumerate(held)]
        logprobs(TensorParallel(shards=tuple(shards), ranks=Ranks(), model=policy.model), policy).sum().backward()
    divided = [
        ([layout for layout in train if layout.axis], {name: tensor.grad for name, tensor in own.items()})
        for train, own in held
    ]
    found = collect(divided, {name: gradient.shape for name, gradient in whole_gradients.items()})
    assert len(found) > 15
    for name, gradient in found.items():
        assert torch.allclose(gradient, whole_gradients[name], atol=TOLERANCE), name
    assert max(float(gradient.abs().max()) for gradient in found.values()) > 0.1


def gradients_of_the_whole(policy: Policy) -> dict[str, torch.Tensor]:
    policy.zero_gradients()
    logprobs(whole(policy), policy).sum().backward()
    return {name: gradient.clone() for name, gradient in policy.model.named_gradients()}


def shards_of(devices: Devices, policy: Policy) -> list[dict[str, torch.Tensor]]:
    """Each training rank's tensors in memory of their own, filled from the policy."""
    state = {name: weight.detach() for name, weight in policy.model.module.named_parameters()}
    made = []
    for pairing in devices.pairings:
        own = {layout.tensor: torch.zeros(layout.rows, layout.columns).double() for layout in pairing.train}
        fill(pairing.train, own, state)
        made.append({name: tensor.requires_grad_() for name, tensor in own.items()})
    return made

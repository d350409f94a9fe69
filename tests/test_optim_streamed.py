"""Streamed AdamW: torch's numbers bit for bit, from state that visits the device chunk by chunk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_optim import fill_gradients
from tiny_policy import moved, prompts, responses, tiny, train

from rollplex.memory.pool import HostPool
from rollplex.optim import AdamW, Optimizer
from rollplex.optim_streamed import StreamedAdamW
from rollplex.phases.update import Update
from rollplex.policy import Policy

OPTIONS: dict[str, Any] = {
    "lr": lambda step: 1e-3 / (1 + step),
    "betas": (0.8, 0.95),
    "eps": 1e-6,
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
}
CHUNK = 2**20


def steps(policy: Policy, optimizer: Optimizer, *indices: int) -> None:
    for index in indices:
        fill_gradients(policy, index, 1e-3 if index % 2 else 1e-2)  # one in two is clipped
        norm = optimizer.norm()
        for ticks in (optimizer.prepare(), optimizer.commit(index, norm)):
            list(ticks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_twenty_steps_are_those_of_torch_bit_for_bit(dtype: torch.dtype) -> None:
    """Weight decay, bias correction, a schedule and clipping included, with the same masters."""
    policy = tiny(dtype)
    before = policy.snapshot()
    optimizer = StreamedAdamW(policy, chunk_bytes=CHUNK, **OPTIONS)
    assert optimizer.num_chunks > 10
    masters = [weight.float().clone() for weight in before.values()]
    recipe = optimizer.recipe
    torchs = recipe.adam(masters)
    clipped = 0
    for index in range(20):
        fill_gradients(policy, index, 1e-4 if index % 2 else 1e-3)
        norm = optimizer.norm()
        scale = recipe.clip(norm)
        clipped += scale is not None
        gradients = [gradient.clone() for gradient in policy.gradients.tensors]
        if scale is not None:
            torch._foreach_mul_(gradients, scale)
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient.float()
        torchs.param_groups[0]["lr"] = recipe.learning_rate(index)
        torchs.step()
        optimizer.step(index, norm)
    assert clipped == 10
    assert moved(policy, before) > 1e-4
    for weight, master in zip(policy.weights.tensors, masters, strict=True):
        assert torch.equal(weight, master.to(dtype))


def test_other_moments_would_be_seen() -> None:
    """The control of the test above."""
    policy = tiny(torch.float32)
    steps(policy, StreamedAdamW(policy, chunk_bytes=CHUNK, **OPTIONS), 0, 1)
    other = tiny(torch.float32)
    steps(other, StreamedAdamW(other, chunk_bytes=CHUNK, **{**OPTIONS, "betas": (0.8, 0.9500001)}), 0, 1)
    assert moved(policy, other.snapshot()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [AdamW, StreamedAdamW])
def test_resuming_is_exact_from_either_kind(dtype: torch.dtype, kind: Any) -> None:
    """Two steps, a save, two steps; and the same two from the save, in chunks of another size."""
    policy = tiny(dtype)
    optimizer = kind(policy, **OPTIONS)
    steps(policy, optimizer, 0, 1)
    saved, weights = optimizer.state_dict(), policy.snapshot()
    steps(policy, optimizer, 2, 3)
    end = policy.snapshot()
    policy.restore(weights, version=0)
    resumed = StreamedAdamW(policy, chunk_bytes=CHUNK // 4, **OPTIONS)
    resumed.load_state_dict(saved)
    steps(policy, resumed, 2, 3)
    assert moved(policy, end) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_state_from_before_the_first_step_is_restored(dtype: torch.dtype) -> None:
    policy = tiny(dtype)
    optimizer, weights = StreamedAdamW(policy, **OPTIONS), policy.snapshot()
    empty = optimizer.state_dict()
    steps(policy, optimizer, 0)
    end = policy.snapshot()
    policy.restore(weights, version=0)
    optimizer.load_state_dict(empty)
    steps(policy, optimizer, 0)
    assert moved(policy, end) == 0


def test_a_resident_optimizer_goes_on_from_a_streamed_ones_save() -> None:
    policy = tiny(torch.bfloat16)
    optimizer = StreamedAdamW(policy, chunk_bytes=CHUNK, **OPTIONS)
    steps(policy, optimizer, 0, 1)
    saved, weights = optimizer.state_dict(), policy.snapshot()
    steps(policy, optimizer, 2)
    end = policy.snapshot()
    policy.restore(weights, version=0)
    resident = AdamW(policy, **OPTIONS)
    resident.load_state_dict(saved)
    steps(policy, resident, 2)
    assert moved(policy, end) == 0


def test_what_is_on_the_device_does_not_depend_on_the_whole_state() -> None:
    """Three chunks; all of it where one chunk holds it."""
    policy = tiny(torch.float32)
    whole = 2 * policy.weights.nbytes
    sizes = [StreamedAdamW(policy, chunk_bytes=size).device_bytes for size in (CHUNK // 2, CHUNK, 2**62)]
    assert sizes[0] <= 3 * CHUNK // 2
    assert 2 * CHUNK < sizes[1] <= 3 * CHUNK
    assert sizes[2] == whole


def test_weights_by_columns_get_the_same_numbers() -> None:
    """As where they are shared with a tensor-parallel trainer; the saved state is that of the shapes, not of storage."""
    ends, states = [], []
    for by_columns in (False, True):
        policy = tiny(torch.float32)
        for leaf in policy.model.leaves.values() if by_columns else ():
            if leaf.dim() == 2 and leaf.grad is not None:
                leaf.data = leaf.detach().T.contiguous().T
                leaf.grad = torch.zeros_like(leaf)
        optimizer = StreamedAdamW(policy, chunk_bytes=CHUNK, **OPTIONS)
        steps(policy, optimizer, 0)
        optimizer.load_state_dict(optimizer.state_dict())
        steps(policy, optimizer, 1)
        ends.append(policy.snapshot())
        states.append(optimizer.state_dict()["adam"]["state"])
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=1e-7) for name in ends[0])
    assert all(torch.allclose(states[0][i]["exp_avg"], states[1][i]["exp_avg"], atol=1e-7) for i in states[0])


def test_weights_are_written_in_place_and_the_state_lies_in_the_pool() -> None:
    policy, pool = tiny(torch.bfloat16), HostPool(64 * 2**20)
    addresses = policy.weights.storages()
    optimizer = StreamedAdamW(policy, chunk_bytes=CHUNK, pool=pool)
    steps(policy, optimizer, 0)
    assert policy.weights.storages() == addresses
    num = sum(leaf.numel() for leaf in policy.weights.tensors)
    assert 12 * num <= pool.owners()["policy.optimizer"] < 12 * num + 64 * 4096


def test_an_update_that_is_broken_off_between_chunks_runs_to_its_end() -> None:
    """Weights are never of two versions, and the version says so."""
    ends = []
    for broken in (False, True):
        policy = tiny()
        batch = prompts("text only")
        stats, _ = train(policy, batch, *responses(policy, batch))
        ticks = Update(policy, chunk_bytes=CHUNK).run(stats)
        for label in ticks:
            if broken and label == "chunk 5":
                ticks.close()
        assert policy.version == 1
        ends.append(policy.snapshot())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_an_update_that_is_broken_off_before_the_first_chunk_changes_nothing() -> None:
    policy = tiny()
    batch, before = prompts("text only"), policy.snapshot()
    stats, _ = train(policy, batch, *responses(policy, batch))
    ticks = Update(policy, chunk_bytes=CHUNK).run(stats)
    assert [next(ticks), next(ticks)] == ["gradient norm", "buffers"]
    ticks.close()
    assert policy.version == 0
    assert moved(policy, before) == 0


def test_a_pool_without_chunks_is_refused() -> None:
    with pytest.raises(ValueError, match="given a pool and no chunk_bytes"):
        Update(tiny(), pool=HostPool(4096))


def test_chunks_of_almost_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="chunk_bytes is 100; use at least"):
        StreamedAdamW(tiny(), chunk_bytes=100)


@pytest.mark.parametrize("kind", [AdamW, StreamedAdamW])
def test_the_recipe_is_the_optimizers_own_after_resuming(kind: Any) -> None:
    """Resumed with more weight decay and other betas, either kind goes on with those."""
    policy = tiny(torch.float32)
    saved = AdamW(policy).state_dict()
    twin = tiny(torch.float32)
    resumed, fresh = kind(policy, **OPTIONS), kind(twin, **OPTIONS)
    resumed.load_state_dict(saved)
    steps(policy, resumed, 0, 1)
    steps(twin, fresh, 0, 1)
    assert moved(policy, twin.snapshot()) == 0


@pytest.mark.parametrize("kind", [AdamW, StreamedAdamW])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=str)
def test_a_state_of_weights_of_another_type_is_refused(kind: Any, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Masters that are missing would be zeros, and the next step would write those over the weights."""
    policy = tiny(dtypes[0])
    optimizer = AdamW(policy)
    steps(policy, optimizer, 0)
    with pytest.raises(ValueError, match="restoring an optimizer's state: it was saved with"):
        kind(tiny(dtypes[1])).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("kind", [AdamW, StreamedAdamW])
def test_a_state_of_another_model_is_refused(kind: Any) -> None:
    policy = tiny(torch.float32)
    optimizer = AdamW(policy)
    steps(policy, optimizer, 0)
    saved = optimizer.state_dict()
    saved["adam"]["state"].pop(max(saved["adam"]["state"]))
    with pytest.raises(ValueError, match="restoring an optimizer's state: 'exp_avg' has 65 tensors"):
        kind(tiny(torch.float32)).load_state_dict(saved)

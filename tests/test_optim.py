"""AdamW over fused weights: torch's own numbers, float32 masters, and exact resumption."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from tiny_policy import moved, tiny
from torch import nn

from rollplex.optim import AdamW
from rollplex.optim_streamed import StreamedAdamW
from rollplex.policy import Policy


def fill_gradients(policy: Policy, index: int, scale: float = 1e-2) -> None:
    """Gradients of step ``index``, never zero."""
    random = torch.Generator().manual_seed(index)
    for gradient in policy.gradients.tensors:
        gradient.copy_(torch.randn(gradient.shape, generator=random) * scale)


def steps(policy: Policy, optimizer: AdamW | StreamedAdamW, *indices: int, scale: float = 1e-2) -> None:
    for index in indices:
        fill_gradients(policy, index, scale)
        optimizer.step(index, optimizer.norm())


@pytest.mark.parametrize("limit", [0.1, float("inf")], ids=["clipped", "not clipped"])
def test_fused_weights_get_what_their_parts_would(limit: float) -> None:
    """Three steps on fused leaves are three of `torch.optim.AdamW` on transformers' separate parameters."""
    policy = tiny(torch.float32)
    before = policy.snapshot()
    named = dict(policy.model.module.named_parameters())
    twins = {name: nn.Parameter(p.detach().clone()) for name, p in named.items()}
    options: dict[str, Any] = {"lr": 1e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    ours, theirs = AdamW(policy, max_grad_norm=limit, **options), torch.optim.AdamW(twins.values(), **options)
    for index in range(3):
        fill_gradients(policy, index)
        for name, gradient in policy.model.named_gradients():
            twins[name].grad = gradient.clone()
        norm = ours.norm()
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(twins.values(), limit)), rel=1e-5)
        assert (norm > limit) is (limit < 1)
        ours.step(index, norm)
        theirs.step()
    assert moved(policy, before) > 1e-4
    assert all(torch.allclose(named[name], twin, rtol=1e-6, atol=1e-8) for name, twin in twins.items())


def test_a_gradient_under_the_limit_is_left_as_it_is() -> None:
    """Clipping scales down, never up."""
    policy = tiny()
    optimizer = AdamW(policy, max_grad_norm=1e9)
    fill_gradients(policy, 0)
    before = [g.clone() for g in policy.gradients.tensors]
    optimizer.step(0, optimizer.norm())
    assert all(torch.equal(a, b) for a, b in zip(before, policy.gradients.tensors, strict=True))


def test_a_gradient_over_the_limit_has_the_limit_for_norm() -> None:
    """The global norm, over all weights together."""
    policy = tiny()
    optimizer = AdamW(policy, max_grad_norm=0.25)
    fill_gradients(policy, 0)
    assert optimizer.norm() > 0.25
    optimizer.step(0, optimizer.norm())
    assert optimizer.norm() == pytest.approx(0.25, rel=1e-5)


def test_narrow_weights_have_float32_masters() -> None:
    """Steps too small for bfloat16 add up in the masters, of which the weights are a rounded copy."""
    policy = tiny(torch.bfloat16)
    leaves = list(policy.weights.tensors)
    before = [leaf.detach().float() for leaf in leaves]
    optimizer = AdamW(policy, lr=1e-6)
    steps(policy, optimizer, *[0] * 20)
    masters = optimizer.state.tensors[-len(leaves) :]
    assert {m.dtype for m in masters} == {torch.float32}
    assert all(torch.equal(m.bfloat16(), leaf) for m, leaf in zip(masters, leaves, strict=True))
    change = torch.cat([(m - b).flatten() for m, b in zip(masters, before, strict=True)])
    # One step is 1e-6 and the next bfloat16 number near a weight of 0.02 is 1e-4 away.
    assert float(change.abs().median()) == pytest.approx(2e-5, rel=0.1)


def test_wide_weights_are_their_own_masters() -> None:
    """Nothing is held twice: two moments a weight."""
    policy = tiny(torch.float32)
    optimizer = AdamW(policy)
    steps(policy, optimizer, 0)
    assert optimizer.state.nbytes == 2 * policy.weights.nbytes
    assert not optimizer.state.overlaps(policy.weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_resuming_is_exact(dtype: torch.dtype) -> None:
    """Three steps, a save, three steps, and the same three once more from the save: bit for bit."""
    policy = tiny(dtype)
    optimizer = AdamW(policy, lr=1e-3, weight_decay=0.1)
    steps(policy, optimizer, 0, 1, 2)
    saved, weights = optimizer.state_dict(), policy.snapshot()
    frozen = deepcopy(saved)
    steps(policy, optimizer, 3, 4, 5)
    end = policy.snapshot()
    assert moved(policy, weights) > 0
    for fresh in (False, True):
        if fresh:
            policy = tiny(dtype)
            optimizer = AdamW(policy, lr=1e-3, weight_decay=0.1)
        policy.restore(weights, version=3)
        optimizer.load_state_dict(saved)
        steps(policy, optimizer, 3, 4, 5)
        assert moved(policy, end) == 0
    assert all(torch.equal(a, b) for a, b in zip(saved["masters"], frozen["masters"], strict=True))
    for index, state in frozen["adam"]["state"].items():
        assert all(torch.equal(value, saved["adam"]["state"][index][name]) for name, value in state.items())


def test_without_the_moments_resuming_is_not_exact() -> None:
    """The control of the test above: weights alone do not say where an optimizer was."""
    policy = tiny(torch.float32)
    optimizer = AdamW(policy, lr=1e-3)
    steps(policy, optimizer, 0, 1, 2)
    weights = policy.snapshot()
    steps(policy, optimizer, 3)
    end = policy.snapshot()
    policy.restore(weights, version=0)
    steps(policy, AdamW(policy, lr=1e-3), 3)
    assert moved(policy, end) > 0


def test_a_state_from_before_the_first_step_is_restored() -> None:
    """Moments that did not exist are forgotten again."""
    policy = tiny(torch.float32)
    optimizer, weights = AdamW(policy), policy.snapshot()
    empty = optimizer.state_dict()
    steps(policy, optimizer, 0, 1)
    end = policy.snapshot()
    policy.restore(weights, version=0)
    optimizer.load_state_dict(empty)
    steps(policy, optimizer, 0, 1)
    assert moved(policy, end) == 0


KINDS = pytest.mark.parametrize("kind", [AdamW, StreamedAdamW])


def written(policy: Policy, weights: dict[str, torch.Tensor]) -> None:
    """Weights written by name into transformers' module, as a checkpoint is."""
    with torch.no_grad():
        for name, (leaf, rows) in policy.model.fused.places.items():
            policy.model.module.get_parameter(name).copy_(weights[leaf][rows])


@KINDS
@pytest.mark.parametrize("put", [lambda p, w: p.restore(w, version=0), written], ids=["restore", "module"])
def test_narrow_weights_that_were_replaced_are_what_the_next_step_begins_at(kind: Any, put: Any) -> None:
    """With the moments as they are: bit for bit as from a state whose masters are those weights."""
    policy, twin = tiny(torch.bfloat16), tiny(torch.bfloat16)
    optimizer, other = kind(policy, lr=1e-2), AdamW(twin, lr=1e-2)
    steps(policy, optimizer, 0, 1)
    state = optimizer.state_dict()
    others = {name: weight + 0.25 for name, weight in policy.snapshot().items()}
    put(policy, others)
    assert moved(policy, others) == 0
    state["masters"] = [weight.float() for weight in others.values()]
    twin.restore(others, version=0)
    other.load_state_dict(state)
    steps(policy, optimizer, 2)
    steps(twin, other, 2)
    assert 0 < moved(policy, others) < 0.05
    assert moved(policy, twin.snapshot()) == 0


@KINDS
def test_masters_of_weights_that_nobody_wrote_keep_their_finer_digits(kind: Any) -> None:
    """One weight was written by somebody else, and only its master follows."""
    policy, twin = tiny(torch.bfloat16), tiny(torch.bfloat16)
    ours, theirs = kind(policy, lr=1e-6), kind(twin, lr=1e-6)
    steps(policy, ours, *[0] * 5)
    steps(twin, theirs, *[0] * 5)
    name, leaf = next(iter(policy.model.leaves.items()))
    with torch.no_grad():
        leaf.view(-1)[0] += 1
    steps(policy, ours, *[0] * 5)
    steps(twin, theirs, *[0] * 5)
    for key, one, two in zip(
        policy.model.leaves, ours.state_dict()["masters"], theirs.state_dict()["masters"], strict=True
    ):
        differ = (one != two).flatten().nonzero().flatten().tolist()
        assert differ == ([0] if key == name else [])


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(1e-3, [1e-3, 1e-3]), (lambda step: 1e-3 / (1 + step), [1e-3, 5e-4])],
    ids=["constant", "schedule"],
)
def test_the_learning_rate_is_that_of_the_step(rate: float | Callable[[int], float], expected: list[float]) -> None:
    """A first Adam step moves every weight by the rate, whatever the gradient's size."""
    for index, value in enumerate(expected):
        policy = tiny()
        before = policy.snapshot()
        optimizer = AdamW(policy, lr=rate)
        steps(policy, optimizer, index)
        assert optimizer.learning_rate(index) == pytest.approx(value)
        assert moved(policy, before) == pytest.approx(value, rel=1e-3)


def test_weights_are_written_in_place() -> None:
    """Every reader of a storage has the new values."""
    policy = tiny()
    addresses = policy.weights.storages()
    steps(policy, AdamW(policy), 0)
    assert policy.weights.storages() == addresses


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_norm_limit_that_is_not_positive_is_refused(limit: float) -> None:
    """It would set every gradient to zero, or none."""
    with pytest.raises(ValueError, match=r"max_grad_norm is .*must be > 0"):
        AdamW(tiny(), max_grad_norm=limit)

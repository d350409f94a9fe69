"""Update: all of a step or nothing of it."""

from __future__ import annotations

import pytest
import torch
from tiny_policy import moved, prompts, responses, tiny, train

from rollplex.phases.update import Update
from rollplex.policy import Policy, StaleError
from rollplex.step import SuffixStats


def ready() -> tuple[Policy, SuffixStats]:
    """A policy with gradients that are not zero."""
    policy = tiny()
    stats, _ = train(policy, prompts("text only", step=4), *responses(policy, prompts("text only")))
    return policy, stats


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    """Weights, moments and version stay, and the message names a parameter as transformers does."""
    policy, stats = ready()
    update = Update(policy)
    name = "model.language_model.layers.1.self_attn.k_proj.weight"
    dict(policy.model.named_gradients())[name][0, 0] = bad
    before = policy.snapshot()
    with pytest.raises(FloatingPointError, match=f"at step 4: the gradient's norm is {bad}, first in '{name}'"):
        update(stats)
    assert moved(policy, before) == 0
    assert policy.version == 0
    assert update.optimizer.state.nbytes == 0


def test_a_norm_that_overflows_changes_nothing() -> None:
    """Finite gradients whose squares are not: no single parameter is to blame."""
    policy, stats = ready()
    dict(policy.model.named_gradients())["model.language_model.norm.weight"][0] = 1e200
    before = policy.snapshot()
    with pytest.raises(FloatingPointError, match="no single tensor"):
        Update(policy)(stats)
    assert moved(policy, before) == 0


def test_an_update_moves_the_weights_and_raises_the_version() -> None:
    """By one, and the report says what was done."""
    policy, stats = ready()
    before = policy.snapshot()
    made = Update(policy, lr=lambda step: 1e-3 * step, max_grad_norm=1e-3)(stats)
    assert moved(policy, before) == pytest.approx(4e-3, rel=1e-2)
    assert (policy.version, made.version, made.step, made.clipped) == (1, 1, 4, True)
    assert made.learning_rate == pytest.approx(4e-3)
    assert made.grad_norm > 1e-3


def test_the_reported_norm_is_that_of_all_gradients_before_clipping() -> None:
    """The 2-norm over every parameter, as transformers names them."""
    policy, stats = ready()
    norms = [torch.linalg.vector_norm(g) for _, g in policy.model.named_gradients()]
    made = Update(policy, max_grad_norm=float("inf"))(stats)
    assert made.grad_norm == pytest.approx(float(torch.linalg.vector_norm(torch.stack(norms))))
    assert made.clipped is False


def test_gradients_of_older_weights_are_refused() -> None:
    """An update serves once: the second one would use gradients of weights that are gone."""
    policy, stats = ready()
    update = Update(policy)
    update(stats)
    before = policy.snapshot()
    with pytest.raises(StaleError, match="gradient of weight version 0: the policy is at version 1"):
        update(stats)
    assert moved(policy, before) == 0


def test_it_says_what_it_reads_and_changes() -> None:
    """The borrow rule sees gradients, weights and, once they exist, moments."""
    policy, stats = ready()
    update = Update(policy)
    assert [r.name for r in update.mutates] == ["policy.weights", "policy.gradients", "optimizer.state"]
    update(stats)
    assert update.mutates[2].nbytes == 2 * policy.weights.nbytes
    assert update.reads[0].overlaps(policy.gradients)

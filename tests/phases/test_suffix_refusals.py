"""What a suffix refuses: values of other weights, and inputs that do not belong together."""

from __future__ import annotations

import pytest
from tiny_policy import prompts, responses, shift, tiny, train

from rollplex.losses import GRPO
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.policy import Reference, StaleError

BATCH = prompts("mixed")


def test_a_prefix_of_older_weights_is_refused() -> None:
    """Its keys are those of weights that are gone."""
    policy = tiny()
    prefix = Prefix(policy)(BATCH)
    policy.version += 1
    with pytest.raises(StaleError, match="prefix of weight version 0"):
        Suffix(policy)(BATCH, prefix, *responses(policy, BATCH))


def test_a_rollout_of_older_weights_is_refused() -> None:
    """On-policy means sampled from the weights that are trained."""
    policy = tiny()
    rollout, rewards = responses(policy, BATCH)
    policy.version += 1
    with pytest.raises(StaleError, match="rollout of weight version 0"):
        Suffix(policy)(BATCH, Prefix(policy)(BATCH), rollout, rewards)


def test_weights_that_changed_since_the_prefix_are_noticed() -> None:
    """Even where nobody raised the version: the saved tensors know."""
    policy = tiny()
    prefix = Prefix(policy)(BATCH)
    shift(policy)
    with pytest.raises(RuntimeError, match="Weights must not change between a prefix and its suffix"):
        Suffix(policy)(BATCH, prefix, *responses(policy, BATCH))


def test_microbatches_of_nothing_are_refused() -> None:
    """At least one response runs at a time."""
    with pytest.raises(ValueError, match="microbatch is 0; it must be at least 1"):
        Suffix(tiny(), microbatch=0)


def test_a_loss_that_needs_a_reference_says_so() -> None:
    """When the phase is made without the model, and when it is run without the model's prefix."""
    policy = tiny()
    with pytest.raises(ValueError, match=r"beta=0\.04, which needs a reference model"):
        Suffix(policy, loss=GRPO(beta=0.04))
    suffix = Suffix(policy, Reference(policy), loss=GRPO(beta=0.04))
    with pytest.raises(ValueError, match="there is no reference_prefix"):
        suffix(BATCH, Prefix(policy)(BATCH), *responses(policy, BATCH))


def test_a_reference_prefix_cut_otherwise_is_refused() -> None:
    """Both boundaries of a prompt have to lie in the same microbatch."""
    policy = tiny()
    reference = Reference(policy)
    suffix = Suffix(policy, reference, loss=GRPO(beta=0.04))
    with pytest.raises(ValueError, match="the same microbatch_tokens"):
        suffix(
            BATCH,
            Prefix(policy)(BATCH),
            *responses(policy, BATCH),
            Prefix(reference, microbatch_tokens=1)(BATCH),
        )


def test_a_greedy_rollout_is_refused() -> None:
    """It has no distribution to take a gradient of."""
    policy = tiny()
    rollout = Decode(policy.engine(), group=2, max_new_tokens=3, temperature=0)(BATCH)
    rewards = Reward([lambda completions, **_: list(range(len(completions)))])(BATCH, rollout)
    with pytest.raises(ValueError, match="greedy responses have no distribution"):
        train(policy, BATCH, rollout, rewards)


def test_a_prefix_of_another_batch_is_refused() -> None:
    """Same weights, same sizes, other prompts: the suffix and the engine both notice."""
    policy = tiny()
    mine, other = prompts("mixed"), prompts("mixed", seed=1)
    prefix = Prefix(policy)(other)
    rollout, rewards = responses(policy, mine)
    with pytest.raises(ValueError, match="another batch"):
        Suffix(policy)(mine, prefix, rollout, rewards)
    with pytest.raises(ValueError, match="another batch"):
        Decode(policy.engine(), group=1, max_new_tokens=1)(mine, prefix)
    assert Decode(policy.engine(), group=1, max_new_tokens=1)(other, prefix).num_tokens > 0

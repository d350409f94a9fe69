"""Microbatches and the running tally: every response that counts, once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_policy import prompts, responses, tiny

from rollplex.losses import GRPO
from rollplex.phases.prefix import Prefix
from rollplex.scoring import Microbatch, Tally, microbatches, score
from rollplex.step import RewardGroup, RolloutGroup
from rollplex.verify import plain

POLICY = tiny()
BATCH = prompts("mixed")
ROLLOUT, REWARDS = responses(POLICY, BATCH, 4)
PAIRS = list(zip(ROLLOUT.groups, REWARDS.groups, strict=True))
(BOUNDARY,) = Prefix(POLICY, tape="recompute")(BATCH).boundaries
CPU = torch.device("cpu")


def tally(pairs: list[tuple[RolloutGroup, RewardGroup]] | None = None, **loss: object) -> Tally:
    made = Tally(GRPO(**loss), len(BATCH))  # type: ignore[arg-type]
    made.admit(PAIRS if pairs is None else pairs)
    return made


def cut(size: int, made: Tally | None = None) -> list[Microbatch]:
    return list(microbatches(BOUNDARY, ROLLOUT.groups, tally() if made is None else made, size, CPU))


@given(st.integers(1, 20), st.lists(st.booleans(), min_size=12, max_size=12))
def test_every_kept_response_is_in_one_microbatch(size: int, kept: list[bool]) -> None:
    """Whatever is kept and however large they are; none is larger than asked."""
    made = tally()
    made.kept = {prompt: torch.tensor(kept[4 * prompt : 4 * prompt + 4]) for prompt in range(3)}
    batches = cut(size, made)
    places = [place for batch in batches for place in batch.places]
    assert sorted(places) == [(i // 4, i % 4) for i, k in enumerate(kept) if k]
    assert all(len(batch.places) <= size for batch in batches)


@pytest.mark.parametrize("size", [1, 5, 64])
def test_a_row_is_its_own_response(size: int) -> None:
    """Tokens, length, advantage, engine log-probabilities and prompt of each place."""
    made = tally()
    for batch in cut(size, made):
        for row, (prompt, sample) in enumerate(batch.places):
            n = int(batch.lengths[row])
            group = ROLLOUT.groups[prompt]
            assert n == int(group.lengths[sample])
            assert torch.equal(batch.tokens[row, :n], group.tokens[sample, :n])
            assert torch.equal(batch.engine_logprobs[row, :n], group.logprobs[sample, :n])
            assert float(batch.advantages[row]) == float(made.advantages[prompt][sample])
            assert BOUNDARY.prompts[int(batch.index[row])] == prompt


@pytest.mark.parametrize("size", [1, 5, 64])
def test_real_places_are_those_within_the_lengths(size: int) -> None:
    """Counted on the host, so that no device is asked."""
    for batch in cut(size):
        mask = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        assert torch.equal(batch.real, mask.flatten().nonzero()[:, 0])


def test_responses_of_like_length_run_together() -> None:
    """No microbatch has a response longer than the shortest of the next."""
    batches = cut(3)
    for one, two in pairwise(batches):
        assert int(one.lengths.max()) <= int(two.lengths.min())


def test_scores_are_those_of_a_full_forward() -> None:
    """Log-probabilities at the sampling temperature; entropy that of the whole distribution; zero past the end."""
    (batch,) = cut(64)
    with torch.no_grad():
        logprobs, entropy = score(POLICY.model, BOUNDARY, batch)
        for row, (prompt, _) in enumerate(batch.places):
            n = int(batch.lengths[row])
            full = plain.logprobs(POLICY.model.module, BATCH[prompt], batch.tokens[row, :n], batch.sampling)
            assert torch.allclose(logprobs[row, :n], full, atol=1e-10)
            assert not bool(logprobs[row, n:].any())
            assert not bool(entropy[row, n:].any())
            assert 0 < float(entropy[row, :n].min()) <= float(entropy.max()) < 6.1  # log of the vocabulary


def test_entropy_is_that_of_the_next_token() -> None:
    """Of one response's first token: minus the sum of p log p over everything that may be sampled."""
    (batch,) = cut(64)
    row, (prompt, _) = 0, batch.places[0]
    vocabulary = torch.arange(POLICY.model.text.vocabulary_size)
    allowed = [i for i in vocabulary.tolist() if i not in batch.sampling.banned]
    with torch.no_grad():
        _, entropy = score(POLICY.model, BOUNDARY, batch)
        each = torch.stack(
            [
                plain.logprobs(POLICY.model.module, BATCH[prompt], torch.tensor([i]), batch.sampling)[0]
                for i in allowed[:: len(allowed) // 2]
            ]
        )
        hidden = BOUNDARY.last_hidden(batch.index[:1])
        logits = POLICY.model.text.head(hidden)[0] / batch.sampling.temperature
        found = torch.log_softmax(logits[allowed], dim=0)
    assert torch.allclose(found[:: len(allowed) // 2], each, atol=1e-10)
    assert float(entropy[row, 0]) == pytest.approx(float(-(found.exp() * found).sum()))


def test_counts_are_of_what_is_in_the_loss() -> None:
    """Sequences and tokens of responses that have a score."""
    unscored = replace(REWARDS.groups[1], values=torch.full((4,), float("nan"), dtype=torch.float64))
    pairs = [PAIRS[0], (ROLLOUT.groups[1], unscored), PAIRS[2]]
    made = tally(pairs)
    assert (made.num_sequences, made.without_signal) == (8, 1)
    assert made.num_tokens == int(ROLLOUT.groups[0].lengths.sum() + ROLLOUT.groups[2].lengths.sum())
    assert made.denominator == 8.0
    assert tally(pairs, loss_type="dapo").denominator == made.num_tokens


def test_admitting_one_by_one_is_admitting_all() -> None:
    """Group-wise advantages need no other group."""
    whole, parts = tally(), Tally(GRPO(), len(BATCH))
    for pair in reversed(PAIRS):
        assert not parts.complete(BOUNDARY)
        parts.admit([pair])
    assert parts.complete(BOUNDARY)
    assert all(torch.equal(whole.advantages[i], parts.advantages[i]) for i in range(3))
    assert (whole.num_sequences, whole.num_tokens) == (parts.num_sequences, parts.num_tokens)


def test_a_response_without_tokens_is_not_in_the_loss() -> None:
    """It has nothing to score, even where it has a reward."""
    group = replace(ROLLOUT.groups[0], lengths=torch.tensor([0, 3, 2, 1]))
    made = tally([(group, REWARDS.groups[0])])
    assert made.kept[0].tolist() == [False, True, True, True]
    assert made.num_tokens == 6

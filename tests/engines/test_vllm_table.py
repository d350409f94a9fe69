"""What is drawn row by row is what the built-in engine would draw, however the engine's batch is arranged."""

from __future__ import annotations

import pytest
import torch
from tiny_policy import prompts, tiny

from rollplex.engines.engine import Request
from rollplex.engines.vllm_table import Batch, Table
from rollplex.sampling import Sampling, uniforms

BATCH = prompts("mixed", seed=1)
SAMPLING = Sampling(temperature=0.7, banned=(3,))


def request(**options: object) -> Request:
    return Request(prompts=BATCH, group=2, max_new_tokens=4, sampling=SAMPLING, **options)  # type: ignore[arg-type]


def test_a_draw_inverts_the_distribution_at_the_samples_own_number() -> None:
    table, logits = Table.of(request(), (0,)), torch.randn(1, 9, generator=torch.Generator().manual_seed(0))
    distribution = SAMPLING.logprobs(logits)
    number = uniforms(seed=BATCH.seed, step=BATCH.step, prompt=1, sample=1, num=4)[2]
    expected = SAMPLING.draw(distribution, torch.tensor([number]))
    assert torch.equal(table.draw(logits, torch.tensor([3]), torch.tensor([2])), expected)
    assert table.logprobs[3, 2] == distribution[0, expected[0]]
    assert int((table.logprobs != 0).sum()) == 1


def test_the_engine_is_left_no_other_choice_than_what_was_drawn() -> None:
    """Greedy over what comes back is the drawn token, in every row."""
    batch = Batch(Table.of(request(), (0,)))
    for index in range(3):
        batch.add(index, row=index, tokens=[])
    forced = batch.apply(torch.randn(3, 9, generator=torch.Generator().manual_seed(0)))
    assert batch.table is not None
    assert torch.equal(forced.argmax(-1), batch.table.tokens[:3, 0])
    assert torch.equal(forced.isfinite().sum(-1), torch.ones(3, dtype=torch.int64))


def test_rows_keep_their_place_when_the_batch_is_rearranged() -> None:
    """Moves, swaps and removals: a row's tokens go where its output list says."""
    batch = Batch(Table.of(request(), (0,)))
    for index in range(4):
        batch.add(index, row=index, tokens=[9] * index)
    batch.remove(0)
    batch.move(3, 0, swap=False)
    batch.move(1, 2, swap=True)
    batch.apply(torch.zeros(3, 9))
    assert batch.table is not None
    assert (batch.table.logprobs != 0).nonzero().tolist() == [[1, 1], [2, 2], [3, 3]]


def test_without_a_table_logits_pass_through() -> None:
    """As in a warm-up."""
    logits = torch.zeros(2, 9)
    assert Batch().apply(logits) is logits


def test_given_tokens_are_taken_and_scored() -> None:
    policy = tiny(torch.float32)
    from rollplex.phases.decode import Decode

    rollout = Decode(policy.engine(), group=2, max_new_tokens=4)(BATCH)
    table = Table.given(rollout)
    logits = torch.zeros(1, policy.model.text.vocabulary_size)
    drawn = table.draw(logits, torch.tensor([5]), torch.tensor([0]))
    assert drawn[0] == rollout.groups[2].tokens[1, 0]
    assert table.logprobs[5, 0] == rollout.sampling.logprobs(logits)[0, drawn[0]]
    assert table.limits.tolist() == [n for group in rollout.groups for n in group.lengths.tolist()]


def test_lengths_that_are_asked_for_are_limits_that_no_token_ends() -> None:
    table = Table.of(request(lengths=torch.tensor([[1, 2], [3, 4], [4, 4]])), (0,))
    assert (table.limits.tolist(), table.eos) == ([1, 2, 3, 4, 4, 4], ())


def test_a_group_is_complete_with_its_last_response() -> None:
    """Its tokens, where they end, and whether an end-of-sequence token ended them."""
    table = Table.of(request(), (0,))
    table.tokens[2:4] = torch.tensor([[5, 0, 0, 0], [6, 7, 8, 5]])
    assert not table.end(2, [5, 0])
    assert table.open_rows() == [0, 1, 3, 4, 5]
    assert table.end(3, [6, 7, 8, 5])
    group = table.group(1, tiny(torch.float32).ingest, version=3)
    assert (group.prompt, group.version) == (1, 3)
    assert (group.lengths.tolist(), group.finished.tolist()) == ([2, 4], [True, False])


def test_other_tokens_than_were_drawn_are_refused() -> None:
    """An engine that samples by itself would make every log-probability wrong."""
    table = Table.of(request(), (0,))
    with pytest.raises(RuntimeError, match="ending response 1: the engine returned tokens \\[8\\]"):
        table.end(1, [8])


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decoding prompt 1: its .* max_length=20"):
        Table.of(request(), (0,)).refuse_longer(BATCH, 20)

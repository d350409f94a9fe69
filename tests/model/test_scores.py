"""Scores are rounded alike in products of every size, from one query and one key on."""

from __future__ import annotations

import torch

from rollplex.model.scores import attention_scores, prescaled

DIM = 32
"""Channels of a head of the shipped model: sums short enough for their order to be told, long enough for it to matter."""


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_score_has_the_same_bits_in_a_product_of_any_size() -> None:
    """The control: those of torch's own products have not."""
    queries, keys = draw(3, 40, DIM, seed=1), draw(3, 70, DIM, seed=2)
    every, unequal = attention_scores(queries, keys), 0
    for num in (1, 2, 3, 4, 5, 18):
        for seen in (1, 3, 15, 16, 17, 33):
            few, some = queries[:, :num], keys[:, :seen]
            assert torch.equal(attention_scores(few, some), every[:, :num, :seen])
            unequal += not torch.equal(few @ some.transpose(1, 2), every[:, :num, :seen])
    assert unequal > 10


def test_a_bias_is_added_whatever_is_padded() -> None:
    queries, keys, bias = draw(2, 3, DIM, seed=1), draw(2, 5, DIM, seed=2), draw(2, 1, 5, seed=3)
    bias[0, 0, 4] = float("-inf")
    assert torch.allclose(attention_scores(queries, keys, bias), attention_scores(queries, keys) + bias, atol=1e-5)


def test_narrow_queries_are_left_as_they_are() -> None:
    """Scaled, they would be rounded once more, by far more than a score of float32 is."""
    wide = draw(2, DIM, seed=1)
    assert torch.equal(prescaled(wide)[0], wide * DIM**-0.5)
    assert prescaled(wide)[1] == 1
    narrow = wide.bfloat16()
    assert prescaled(narrow)[0] is narrow
    assert prescaled(narrow)[1] == DIM**-0.5

"""Chunks cover every element once, in order, and are alike in size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollplex.chunks import ALIGNMENT, chunks

SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=8)


@given(SIZES, st.integers(ALIGNMENT, 400))
def test_every_element_is_in_one_piece(sizes: list[int], largest: int) -> None:
    seen = [torch.zeros(size) for size in sizes]
    for chunk in chunks(sizes, largest):
        for piece in chunk.pieces:
            piece.of(seen).add_(1)
    assert all(bool((t == 1).all()) for t in seen)


@given(SIZES, st.integers(ALIGNMENT, 400))
def test_pieces_fill_their_chunk_without_gaps(sizes: list[int], largest: int) -> None:
    for chunk in chunks(sizes, largest):
        filled = torch.zeros(chunk.num)
        for piece in chunk.pieces:
            piece.within(filled).add_(1)
        assert bool((filled == 1).all())


@given(SIZES, st.integers(ALIGNMENT, 400))
def test_no_chunk_is_larger_than_asked_or_much_smaller_than_another(sizes: list[int], largest: int) -> None:
    nums = [chunk.num for chunk in chunks(sizes, largest)]
    assert max(nums) <= largest
    assert max(nums) - min(nums) <= ALIGNMENT * len(nums)


def test_a_piece_shares_bytes_and_version_counter_with_its_tensor() -> None:
    """So that autograd sees that a saved weight was changed."""
    weight = torch.zeros(4, 5, requires_grad=True)
    before = weight._version
    with torch.no_grad():
        chunks([20], 32)[0].pieces[0].of([weight]).fill_(3)
    assert bool((weight == 3).all())
    assert weight._version > before


def test_a_tensor_by_columns_is_cut_in_the_order_of_storage() -> None:
    """Every element once; two tensors of one form meet element by element."""
    weight, gradient = (torch.arange(20.0).view(5, 4).T for _ in range(2))
    for chunk in chunks([20], 16):
        for piece in chunk.pieces:
            piece.of([weight]).add_(piece.of([gradient]))
    assert torch.equal(weight, 2 * gradient)


def test_chunks_of_almost_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="chunks of at most 4 elements: it must be at least 16"):
        chunks([100], 4)

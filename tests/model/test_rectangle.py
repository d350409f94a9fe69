"""Rows by prompt as a rectangle, and back."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rollplex.model.rectangle import Rectangle

counts = st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any)


@given(counts)
def test_there_and_back_is_the_same(counts: list[int]) -> None:
    """Every row has its own place, in its prompt's line."""
    rows = torch.arange(1.0, sum(counts) + 1)
    made = Rectangle.of(counts, device="cpu")
    grouped = made.grouped(rows)
    assert torch.equal(made.rows(grouped), rows)
    assert grouped.shape == (sum(c > 0 for c in counts), max(counts))
    assert float(grouped.sum()) == float(rows.sum()), "the rest is zero"


@given(counts)
def test_owners_and_chosen_name_the_same_prompts(counts: list[int]) -> None:
    """Line i of the rectangle belongs to entry i of what was chosen."""
    made = Rectangle.of(counts, device="cpu")
    prompts = torch.arange(len(counts))
    assert made.owners().bincount(minlength=len(counts)).tolist() == counts
    assert made.chosen(prompts).tolist() == [i for i, c in enumerate(counts) if c]
    lines = made.grouped(made.owners() + 1)
    for prompt, line in zip(made.chosen(prompts).tolist(), lines.tolist(), strict=True):
        assert set(line) - {0} == {prompt + 1}


def test_a_full_rectangle_is_a_view() -> None:
    """Nothing is copied where every prompt has as many rows."""
    rows = torch.zeros(6)
    assert Rectangle.of([2, 2, 2], device="cpu").grouped(rows).data_ptr() == rows.data_ptr()

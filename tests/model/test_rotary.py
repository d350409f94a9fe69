"""Rotary positions: what a turn keeps, and where text and pictures agree."""

import torch
from tiny_policy import tiny

from rollplex.model.rotary import TextRotary, rotate

ROTARY = TextRotary(inv_freq=torch.tensor([1.0, 0.5, 0.1, 0.01]), scaling=1.0, sections=(1, 2, 1))


def test_a_turn_keeps_lengths_and_relative_positions() -> None:
    """Products of queries and keys depend on their distance alone."""
    q, k = torch.randn(2, 8, dtype=torch.float64)
    at = [ROTARY.text_angles(torch.tensor(float(i)), torch.float64) for i in range(12)]
    turned = [rotate(q, *angles) for angles in at]
    assert all(torch.allclose(t.norm(), q.norm(), atol=1e-6) for t in turned)
    products = [float(rotate(q, *at[i + 3]) @ rotate(k, *at[i])) for i in (0, 4, 8)]
    assert max(products) - min(products) < 1e-5
    assert abs(products[0] - float(rotate(q, *at[1]) @ rotate(k, *at[0]))) > 1e-3


def test_position_zero_turns_nothing() -> None:
    """The first token is as it is."""
    x = torch.randn(8)
    assert torch.equal(rotate(x, *ROTARY.text_angles(torch.tensor(0.0), torch.float32)), x)


def test_text_has_the_angles_of_three_equal_positions() -> None:
    """Temporal, height and width of a text token are one number."""
    positions = torch.arange(10).view(2, 5)
    one = ROTARY.text_angles(positions, torch.float64)
    three = ROTARY.angles(positions.expand(3, 2, 5), torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


def test_each_section_follows_its_own_position() -> None:
    """The first frequency is temporal, the next two height, the last width."""
    cos, _ = ROTARY.angles(torch.tensor([[3.0], [5.0], [7.0]]), torch.float32)
    places = torch.tensor([3.0, 5.0, 5.0, 7.0]) * ROTARY.inv_freq
    assert torch.equal(cos[0], torch.cat((places, places)).cos())


def test_frequencies_are_those_of_the_module() -> None:
    """Read from transformers' own buffer."""
    model = tiny().model
    expected = model.module.get_submodule("model.language_model.rotary_emb").get_buffer("inv_freq")
    assert torch.equal(model.text.rotary.inv_freq, expected.float())

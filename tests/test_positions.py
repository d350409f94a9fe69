"""Positions equal the model's own rope index."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

from rollplex.positions import Kind, mrope_positions, num_visual_tokens

TOKENS_PER_SECOND = 2
TEXT, IMAGE, VIDEO = Kind


@cache
def model() -> Qwen2_5_VLModel:
    """The smallest model that has the method; its weights are never used."""
    text = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=8)
    vision |= dict(tokens_per_second=TOKENS_PER_SECOND, fullatt_block_indexes=[0])
    config = Qwen2_5_VLConfig(
        text_config=dict(**text, num_key_value_heads=1, rope_parameters=rope), vision_config=vision
    )
    with torch.device("meta"):
        return Qwen2_5_VLModel(config)


def grids(*rows: tuple[int, int, int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)


def kinds(*parts: int | tuple[Kind, tuple[int, int, int]]) -> torch.Tensor:
    """Text lengths and (kind, grid) pairs to token kinds."""
    tokens: list[int] = []
    for part in parts:
        tokens += [TEXT] * part if isinstance(part, int) else [part[0]] * num_visual_tokens(torch.tensor(part[1]), 2)
    return torch.tensor(tokens)


def ours(
    kind: torch.Tensor, images: torch.Tensor, videos: torch.Tensor, seconds: tuple[float, ...]
) -> tuple[torch.Tensor, int]:
    return mrope_positions(kind, images, videos, seconds, merge=2, tokens_per_second=TOKENS_PER_SECOND)


def theirs(
    kind: torch.Tensor, images: torch.Tensor, videos: torch.Tensor, seconds: tuple[float, ...]
) -> tuple[torch.Tensor, int]:
    positions, delta = model().get_rope_index(
        torch.ones_like(kind)[None], kind[None], images, videos, torch.tensor(seconds, dtype=torch.float32)
    )
    return positions[:, 0], int(delta) + kind.numel()


SMALL, TALL, WIDE, LONG = (1, 4, 4), (1, 36, 2), (1, 8, 14), (6, 4, 4)
CASES = {
    "text only": (kinds(7), grids(), grids(), ()),
    "image before text": (kinds((IMAGE, WIDE), 3), grids(WIDE), grids(), ()),
    "image between text": (kinds(2, (IMAGE, WIDE), 3), grids(WIDE), grids(), ()),
    "image after text": (kinds(2, (IMAGE, WIDE)), grids(WIDE), grids(), ()),
    "image alone": (kinds((IMAGE, SMALL)), grids(SMALL), grids(), ()),
    "images of three sizes": (
        kinds(1, (IMAGE, TALL), 2, (IMAGE, WIDE), 1, (IMAGE, SMALL), 4),
        grids(TALL, WIDE, SMALL),
        grids(),
        (),
    ),
    "video of whole seconds": (kinds(2, (VIDEO, LONG), 3), grids(), grids(LONG), (1.0,)),
    "slow video": (kinds(2, (VIDEO, LONG), 3), grids(), grids(LONG), (3.0,)),
    "two videos": (kinds((VIDEO, LONG), 1, (VIDEO, (2, 6, 4)), 1), grids(), grids(LONG, (2, 6, 4)), (2.0, 1.0)),
    "image and video": (kinds(1, (IMAGE, TALL), 1, (VIDEO, LONG), 5), grids(TALL), grids(LONG), (1.0,)),
    "video beside image": (kinds(1, (VIDEO, LONG), (IMAGE, WIDE), 1), grids(WIDE), grids(LONG), (1.0,)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_positions_equal_the_models_rope_index(case: tuple) -> None:
    positions, after = ours(*case)
    expected, expected_after = theirs(*case)
    assert torch.equal(positions, expected)
    assert after == expected_after


@pytest.mark.parametrize("seconds", [0.5, 1 / 3, 0.7, 2 / 24])
def test_fractions_of_a_second_equal_the_models_rope_index(seconds: float) -> None:
    case = kinds(2, (VIDEO, LONG), 3), grids(), grids(LONG), (seconds,)
    expected, after = theirs(*case)
    if torch.equal(expected, theirs(*case[:3], (float(int(seconds)),))[0]) and not torch.equal(
        ours(*case)[0], expected
    ):
        pytest.skip("this release of transformers cuts second_per_grid_ts to whole seconds")
    assert torch.equal(ours(*case)[0], expected)
    assert ours(*case)[1] == after


@pytest.mark.parametrize(("seconds", "place"), [(0.5, 4), (1.0, 5), (2.0, 7), (0.2, 3)])
def test_the_second_frame_pair_is_placed_by_the_clock(seconds: float, place: int) -> None:
    positions, _ = ours(kinds(3, (VIDEO, (2, 2, 2)), 1), grids(), grids((2, 2, 2)), (seconds,))
    assert positions[:, 4].tolist() == [place, 3, 3]


def test_a_response_starts_after_the_largest_position_not_at_the_prompt_length() -> None:
    kind = kinds(1, (IMAGE, WIDE), 2)
    positions, after = ours(kind, grids(WIDE), grids(), ())
    assert after == int(positions.max()) + 1 == 1 + 7 + 2
    assert after != kind.numel()


def test_adjacent_images_are_told_apart_by_their_grids() -> None:
    apart, _ = ours(kinds((IMAGE, SMALL), (IMAGE, WIDE)), grids(SMALL, WIDE), grids(), ())
    first, after = ours(kinds((IMAGE, SMALL)), grids(SMALL), grids(), ())
    second, _ = ours(kinds((IMAGE, WIDE)), grids(WIDE), grids(), ())
    assert torch.equal(apart, torch.cat([first, second + after], dim=1))


def test_a_missing_time_is_an_error_not_a_default() -> None:
    with pytest.raises(ValueError, match="1 videos and 0 values of second_per_grid_ts"):
        ours(kinds((VIDEO, LONG)), grids(), grids(LONG), ())


@pytest.mark.parametrize(
    ("kind", "images", "message"),
    [
        (kinds(), grids(), "0 tokens"),
        (kinds(1, (IMAGE, SMALL)), grids(), "4 image placeholder tokens without a grid"),
        (kinds(3), grids(SMALL), "grids without placeholder tokens: {'image': 1}"),
        (kinds(1, (IMAGE, SMALL))[:-1], grids(SMALL), "end 1 tokens early"),
    ],
)
def test_tokens_and_grids_must_match(kind: torch.Tensor, images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ours(kind, images, grids(), ())

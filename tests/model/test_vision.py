"""The vision tower against transformers' own, on grids that fit windows and on those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_policy import tiny

from rollplex.model.vision import Segments

GRIDS = {
    "one unit": [(1, 2, 2)],
    "one window": [(1, 8, 8)],
    "several windows": [(1, 16, 24)],
    "no multiple of the window": [(1, 10, 14)],
    "narrow": [(1, 2, 22)],
    "several pictures": [(1, 4, 6), (1, 2, 2), (1, 12, 10), (1, 4, 6)],
    "video": [(4, 6, 10)],
    "videos": [(2, 4, 4), (5, 2, 10), (1, 8, 8)],
}
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12}


def pixels(grids: torch.Tensor, seed: int = 0) -> torch.Tensor:
    num = int(grids.prod(dim=1).sum())
    return torch.randn(num, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(seed))


def theirs(policy: Any, patches: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
    return policy.model.module.model.visual(patches.to(policy.model.dtype), grid_thw=grids).pooler_output


@torch.no_grad()
def error(policy: Any, grids: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    patches = pixels(grids)
    expected = theirs(policy, patches, grids)
    return float((policy.model.vision(patches, grids) - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", GRIDS)
def test_features_are_those_of_transformers(name: str, dtype: torch.dtype) -> None:
    """Batched windows are the same windows."""
    assert error(tiny(dtype), torch.tensor(GRIDS[name])) < LIMITS[dtype]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=3))
def test_features_agree_on_any_grids(units: list[tuple[int, int, int]]) -> None:
    """Whatever sizes come together."""
    assert error(POLICY, torch.tensor([(t, 2 * h, 2 * w) for t, h, w in units])) < LIMITS[torch.float64]


POLICY = tiny()


def test_gradients_are_those_of_transformers() -> None:
    """Of every vision parameter, with and without recomputation."""
    grids = torch.tensor([(1, 10, 14), (2, 4, 6)])
    patches = pixels(grids)
    found = []
    for forward in (
        lambda p: theirs(p, patches, grids),
        lambda p: p.model.vision(patches, grids),
        lambda p: p.model.vision(patches, grids, checkpointed=True),
    ):
        policy = tiny()
        forward(policy).square().sum().backward()
        found.append({n: g for n, g in policy.model.named_gradients() if "visual" in n})
    for name, expected in found[0].items():
        scale = expected.abs().max()
        assert float(scale) > 0
        for other in found[1:]:
            assert float((other[name] - expected).abs().max() / scale) < LIMITS[torch.float64]


@torch.no_grad()
def test_a_picture_does_not_depend_on_others() -> None:
    """Pictures never attend to each other."""
    grids = torch.tensor([(1, 6, 10), (2, 4, 4)])
    first, second = pixels(grids[:1], 1), pixels(grids[1:], 2)
    together = POLICY.model.vision(torch.cat((first, second)), grids)
    alone = [POLICY.model.vision(p, g[None]) for p, g in zip((first, second), grids, strict=True)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-12)


@torch.no_grad()
def test_windows_matter() -> None:
    """The control: full attention everywhere is another function, so the tests above see windows."""
    tower = POLICY.model.vision
    assert any(not block.full_attention for block in tower.blocks)
    full = replace(tower, blocks=tuple(replace(block, full_attention=True) for block in tower.blocks))
    grids = torch.tensor([(1, 16, 16)])
    patches = pixels(grids)
    assert float((tower(patches, grids) - full(patches, grids)).abs().max()) > 1e-3


def test_a_frame_is_attended_to_window_after_window() -> None:
    """As transformers and vLLM do, so that all of them sum in one order; with windows of one length, as patches lie."""
    plan = POLICY.model.vision.plan(torch.tensor([(1, 16, 16)]))
    assert torch.equal(plan.frames.order, torch.arange(256))
    assert POLICY.model.vision.plan(torch.tensor([(1, 16, 20)])).frames.order.tolist() != list(range(320))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 1000))
def test_segments_are_a_permutation_by_length(lengths: list[int], seed: int) -> None:
    """Every patch is in one run, runs stay whole, and the way back undoes the way there."""
    shuffled = torch.randperm(sum(lengths), generator=torch.Generator().manual_seed(seed))
    runs = list(shuffled.split(lengths))
    made = Segments.of(runs)
    assert torch.equal(made.order[made.inverse], torch.arange(len(shuffled)))
    assert sum(num * length for num, length in made.batches) == len(shuffled)
    start, found = 0, []
    for num, length in made.batches:
        found += made.order[start : start + num * length].view(num, length).tolist()
        start += num * length
    assert sorted(found) == sorted(run.tolist() for run in runs)

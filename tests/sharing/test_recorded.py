"""Watching a loader: what it would have copied where, and that nothing was copied."""

from __future__ import annotations

import pytest
import torch

from rollplex.sharing.layout import Block
from rollplex.sharing.recorded import Copied, Recorder, blocks


def watched(copy: object) -> tuple[list[Copied], torch.Tensor]:
    """Copies between one tensor ``[6, 4]`` on each side, and what the engine's holds afterwards."""
    engine, checkpoint = {"e": torch.zeros(6, 4)}, {"c": torch.ones(6, 4)}
    with Recorder(engine, checkpoint) as recorder:
        copy(engine["e"], checkpoint["c"])  # type: ignore[operator]
    return recorder.copies, engine["e"]


def test_a_slice_is_noted_with_both_its_places_and_not_copied() -> None:
    copies, engine = watched(lambda e, c: e.data.narrow(0, 1, 2).copy_(c.narrow(0, 3, 2)))
    (copy,) = copies
    assert (copy.tensor, copy.offset, copy.source, copy.source_offset, copy.num_elements) == ("e", 4, "c", 12, 8)
    assert copy.dense
    assert not engine.any()


def test_slices_of_columns_are_not_dense() -> None:
    """A view of one side is then no view of the other."""
    (copy,), _ = watched(lambda e, c: e[:, :2].copy_(c[:, 2:]))
    assert not copy.dense
    assert blocks([copy], {"c": torch.ones(6, 4)}) == {"e": (Block("c", 0, 6, 2, 2),)}


def test_a_transposed_copy_is_not_dense() -> None:
    (copy,), _ = watched(lambda e, c: e[:4, :4].copy_(c[:4, :4].T))
    assert not copy.dense


@pytest.mark.parametrize("kind", ["cast", "from elsewhere", "to elsewhere"])
def test_other_copies_happen_and_are_not_noted(kind: str) -> None:
    """A tensor that a loader made itself is nobody's bytes: whoever binds finds that nothing came from the checkpoint."""
    other = torch.full((6, 4), 3.0)
    copies, engine = watched(
        {
            "cast": lambda e, c: e.copy_(c.double()),
            "from elsewhere": lambda e, c: e.copy_(other),
            "to elsewhere": lambda e, c: other.copy_(c),
        }[kind]
    )
    assert copies == []
    assert bool(engine.any()) == (kind != "to elsewhere")
    assert kind != "to elsewhere" or bool((other == 1).all())


def test_tensors_of_one_storage_are_told_apart() -> None:
    """As the parts of a fused projection are."""
    fused, engine = torch.ones(6, 4), torch.zeros(6, 4)
    with Recorder({"e": engine}, {"q": fused[:2], "kv": fused[2:]}) as recorder:
        engine[2:].copy_(fused[2:])
    assert [(copy.source, copy.source_offset) for copy in recorder.copies] == [("kv", 0)]


def test_a_tensor_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match="recording a loader: e is not contiguous"):
        Recorder({"e": torch.zeros(4, 6).T}, {})

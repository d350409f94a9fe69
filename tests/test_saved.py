"""What a graph keeps alive: counted by storage, and guarded against changes."""

import weakref

import pytest
import torch

from rollplex.saved import SavedTensors


def leaf(num: int = 4) -> torch.Tensor:
    return torch.rand(num, requires_grad=True)


def test_a_storage_that_is_saved_twice_counts_once() -> None:
    """Both products save the same input."""
    saved, x, y = SavedTensors(weights=()), torch.rand(8), leaf(8)
    with saved.counting():
        made = x * y, x * y
    assert len(made) == 2
    assert saved.nbytes == x.nbytes


def test_weights_do_not_count() -> None:
    """They are there anyway."""
    x, w = torch.rand(8), leaf(8)
    counts = []
    for weights in ((), (w,)):
        saved = SavedTensors(weights)
        with saved.counting():
            (x.clone().requires_grad_() * w).sum()
        counts.append(saved.nbytes)
    assert counts == [64, 32]


def test_counting_can_be_entered_again() -> None:
    """A forward in ticks is counted tick by tick."""
    saved = SavedTensors(weights=())
    with saved.counting():
        x = leaf().exp()
    with saved.counting():
        x.exp()
    assert saved.nbytes == 32


def test_what_is_saved_outside_does_not_count() -> None:
    """Hooks end with the block."""
    saved = SavedTensors(weights=())
    with saved.counting():
        pass
    leaf().exp()
    assert saved.nbytes == 0


def test_gradients_are_those_without_counting() -> None:
    """Watching changes nothing, second use of a saved output included."""
    x = leaf()
    (plain,) = torch.autograd.grad((x.exp() * x.sin()).sum(), x)
    with SavedTensors(weights=()).counting():
        y = (x.exp() * x.sin()).sum()
    (found,) = torch.autograd.grad(y, x)
    assert torch.equal(found, plain)


def test_a_saved_weight_that_was_changed_is_noticed() -> None:
    """The backward pass would otherwise be that of other weights."""
    x, w = leaf(), leaf()
    with SavedTensors(weights=(w,)).counting():
        y = (x * w).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \(4,\).*was changed in place since"):
        y.backward()


def test_a_graph_that_is_dropped_gives_its_tensors_back() -> None:
    """Counting keeps nothing alive by itself."""
    x = leaf()
    with SavedTensors(weights=()).counting():
        y = x.exp()
    gone = weakref.ref(y)
    del y
    assert gone() is None

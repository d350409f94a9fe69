"""What a graph keeps alive: counted by storage, and guarded against changes."""

import weakref

import pytest
import torch

from rollplex.memory.arena import Arena, OutOfDeviceMemory
from rollplex.memory.pool import HostPool
from rollplex.saved import Keeping, SavedTensors


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
            made = (x.clone().requires_grad_() * w).sum()
        counts.append(saved.nbytes)
        del made
    assert counts == [64, 32]


def test_counting_can_be_entered_again() -> None:
    """A forward in ticks is counted tick by tick."""
    saved = SavedTensors(weights=())
    with saved.counting():
        x = leaf().exp()
    with saved.counting():
        y = x.exp()
    assert saved.nbytes == 32
    del y
    assert saved.nbytes == 16


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


LARGE = 4096
"""Elements of a storage that is worth a slot."""


def offloading() -> tuple[SavedTensors, HostPool]:
    pool = HostPool(64 * 4 * LARGE)
    return SavedTensors((), keeping=Keeping(pool=pool)), pool


def test_what_has_settled_is_in_the_pool_and_comes_back_in_the_backward_pass() -> None:
    """A storage saved through two views moves once, and its slot is free again after the last use."""
    saved, pool = offloading()
    x = leaf(LARGE)
    y = x.exp()
    (plain,) = torch.autograd.grad((y.view(2, -1).sin() * y.view(2, -1)).sum(), x)
    with saved.counting():
        y = x.exp()
        z = (y.view(2, -1).sin() * y.view(2, -1)).sum()
    del y
    before = saved.nbytes
    saved.settle()
    assert saved.nbytes == 0
    assert pool.owners() == {"policy.tape": before}
    (found,) = torch.autograd.grad(z, x)
    assert torch.equal(found, plain)
    assert pool.free_bytes == pool.nbytes


def test_what_is_resident_anyway_does_not_move() -> None:
    """Named when the piece is over, however it was saved before."""
    saved, pool = offloading()
    x = leaf(LARGE)
    with saved.counting():
        keys = x.exp()
        y = keys.sin()
    saved.settle(resident=(keys,))
    assert (saved.nbytes, pool.owners()) == (0, {})
    with saved.counting():
        z = keys.cos()
    saved.settle()
    assert pool.owners() == {}
    (y.sum() + z.sum()).backward()
    assert x.grad is not None


def test_weights_do_not_move() -> None:
    pool = HostPool(64 * 4 * LARGE)
    x, w = leaf(LARGE), leaf(LARGE)
    saved = SavedTensors((w, x), keeping=Keeping(pool=pool))
    with saved.counting():
        y = (x * w).sum()
    saved.settle()
    assert pool.owners() == {}
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="changed in place since"):
        y.backward()


def test_a_graph_that_is_dropped_gives_its_slots_back() -> None:
    saved, pool = offloading()
    with saved.counting():
        y = leaf(LARGE).exp()
    saved.settle()
    assert pool.free_bytes < pool.nbytes
    del y
    assert pool.free_bytes == pool.nbytes


def test_a_change_before_the_move_is_noticed() -> None:
    """What the pool would keep is not what was saved."""
    saved, _ = offloading()
    x = torch.rand(LARGE)
    with saved.counting():
        y = x * leaf(LARGE)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place since"):
        saved.settle()
    del y


def test_a_budget_counts_what_is_on_the_device() -> None:
    """While it is saved, not while it is in the pool, again while it is used, and not after."""
    arena, pool = Arena.host(budget_bytes=2**20), HostPool(2**20)
    saved = SavedTensors((), keeping=Keeping(owner="tape", arena=arena, pool=pool))
    with saved.counting():
        y = leaf(LARGE).exp().sum()
    assert arena.owners() == {"tape": 4 * LARGE}
    saved.settle()
    assert arena.owners() == {}
    arena.fullest()
    y.backward()
    assert arena.fullest() == {"tape": 4 * LARGE}
    assert arena.owners() == {}
    arena.close()


def test_a_budget_that_is_spent_stops_the_forward_pass_and_the_backward_pass() -> None:
    """With the error of the arena, owners and all; what was moved is still there for another try."""
    arena, pool = Arena.host(budget_bytes=5 * LARGE), HostPool(2**20)
    saved = SavedTensors((), keeping=Keeping(owner="tape", arena=arena, pool=pool))
    x = leaf(LARGE)
    with saved.counting():
        y = x.exp().sum()
        with pytest.raises(OutOfDeviceMemory, match="of tape"):
            x.exp()
    saved.settle()
    other = arena.charge("engine.kv", 4 * LARGE)
    with pytest.raises(OutOfDeviceMemory, match="of tape"):
        y.backward(retain_graph=True)
    other.free()
    y.backward()
    assert torch.equal(x.grad, x.exp())  # type: ignore[arg-type]
    arena.close()

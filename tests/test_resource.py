"""Resources are told apart by the storages under their tensors."""

import torch

from rollplex.resource import Resource


def of(*tensors: torch.Tensor) -> Resource:
    return Resource("r", tensors)


def test_views_of_one_storage_overlap_even_without_a_common_element() -> None:
    """Memory is mapped and sent by storage, so that is the unit of a borrow."""
    base = torch.zeros(8)
    assert of(base[:2]).overlaps(of(base[4:]))


def test_equal_tensors_in_two_storages_do_not_overlap() -> None:
    """What counts is where the bytes are."""
    assert not of(torch.zeros(8)).overlaps(of(torch.zeros(8)))


def test_one_shared_tensor_is_enough() -> None:
    """Sets of tensors overlap if any storage is common."""
    a, b, c = (torch.zeros(2) for _ in range(3))
    assert of(a, b).overlaps(of(b, c))
    assert not of(a).overlaps(of(b, c))


def test_empty_tensors_belong_to_nobody() -> None:
    """All empty storages may have one address."""
    assert not of(torch.zeros(0)).overlaps(of(torch.zeros(0)))
    assert not of().overlaps(of(torch.zeros(1)))


def test_a_storage_counts_once_and_whole() -> None:
    """Ten views hold as much memory as one."""
    base = torch.zeros(8)
    assert of(base[:1], base[1:2], base).nbytes == base.untyped_storage().nbytes() == 32


def test_bytes_beyond_leaves_out_what_was_seen() -> None:
    """Owners that are counted one after another never count a storage twice."""
    shared, own = torch.zeros(8), torch.zeros(2)
    seen: set[int] = set()
    assert of(shared).bytes_beyond(seen) == 32
    assert of(shared[:1], own).bytes_beyond(seen) == 8
    assert of(own).bytes_beyond(seen) == 0

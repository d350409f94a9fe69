"""Long-lived things that phases read or change in place, known by the storage they occupy.

This file knows how to tell whether two resources share bytes. It does not know what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Resource:
    """A named set of tensors with one owner, compared by the storages under them.

    >>> w = torch.zeros(4)
    >>> Resource("weights", (w,)).overlaps(Resource("engine", (w[:2],)))
    True
    """

    name: str
    """What a person calls it, e.g. ``"policy.weights"``."""
    tensors: tuple[torch.Tensor, ...]
    """The tensors; two resources that view one storage are the same bytes, whatever their names."""

    def storages(self) -> frozenset[int]:
        """Addresses of the distinct storages under the tensors (empty storages are nobody's)."""
        return frozenset(s.data_ptr() for s in self._untyped() if s.nbytes())

    def overlaps(self, other: Resource) -> bool:
        """Whether the two share at least one storage."""
        return not self.storages().isdisjoint(other.storages())

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct storages: a storage seen through ten views counts once."""
        return sum({s.data_ptr(): s.nbytes() for s in self._untyped()}.values())

    def bytes_beyond(self, seen: set[int]) -> int:
        """Bytes of the storages that are not in ``seen`` yet; adds them to it."""
        fresh = {s.data_ptr(): s.nbytes() for s in self._untyped() if s.data_ptr() not in seen}
        seen.update(fresh)
        return sum(fresh.values())

    def _untyped(self) -> Iterable[torch.UntypedStorage]:
        return (tensor.untyped_storage() for tensor in self.tensors)

    def __repr__(self) -> str:
        return f"Resource({self.name!r}, {len(self.tensors)} tensors)"

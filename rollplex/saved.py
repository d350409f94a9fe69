"""What autograd saves for a backward pass: how many bytes, and whether they were changed since."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

import torch


class SavedTensors:
    """Counts the storages that a graph keeps alive, weights left out.

    >>> saved = SavedTensors(weights=())
    >>> x = torch.ones(4, requires_grad=True)
    >>> with saved.counting():
    ...     y = x.exp()
    >>> saved.nbytes
    16
    """

    def __init__(self, weights: Collection[torch.Tensor]) -> None:
        self._seen = {w.untyped_storage().data_ptr() for w in weights}
        self.nbytes = 0

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count what is saved inside; enter it anew in every tick, since hooks belong to the thread."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield

    def _pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.nbytes += storage.nbytes()
        # Detached, because a saved output that still knew its node would keep itself alive.
        return tensor.detach(), tensor._version


def _unpack(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
    tensor, version = saved
    if tensor._version != version:
        raise RuntimeError(
            f"running a backward pass: a tensor of shape {tuple(tensor.shape)} that the forward pass saved was changed "
            "in place since. Weights must not change between a prefix and its suffix."
        )
    return tensor

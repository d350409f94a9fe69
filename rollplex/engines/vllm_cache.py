"""The engine's key/value cache on pages that come with the first touch and go back after decoding.

Addresses are reserved once and stay: the engine keeps its tensors, and finds zeros in them where pages were returned.
Main memory only; on a CUDA device the cache stays as vLLM made it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollplex.memory.pages import HostPages


class CachePages:
    """Moves cache tensors onto pages of their own.

    >>> kv = torch.zeros(2, 1024)
    >>> layers = list(kv)
    >>> cache = CachePages(layers)
    >>> layers[1].fill_(1.0)[0].item(), cache.nbytes
    (1.0, 4096)
    >>> cache.release()
    >>> cache.nbytes, layers[1].sum().item()
    (0, 0.0)
    >>> cache.close()
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        devices = {tensor.device.type for tensor in tensors}
        self._reserved = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
        self._pages = HostPages.reserve(self._reserved) if devices == {"cpu"} else None
        if self._pages is not None:
            _move(tensors, self._pages)

    @property
    def nbytes(self) -> int:
        """Bytes that are held now: pages that were touched, or all of the cache on a device."""
        return self._reserved if self._pages is None else self._pages.backed_bytes

    def release(self) -> None:
        """Give the memory back; the cached keys and values are gone, so the engine must not count on them."""
        if self._pages is not None:
            self._pages.release(0, self._pages.nbytes)

    def close(self) -> None:
        """Return pages and descriptor."""
        if self._pages is not None:
            self._pages.close()


def _move(tensors: Sequence[torch.Tensor], pages: HostPages) -> None:
    """Put every storage under ``tensors`` onto the pages, in order, whoever else holds the tensors."""
    starts: dict[int, int] = {}
    end = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in starts:
            starts[storage.data_ptr()] = end
            end += storage.nbytes()
    places = [(tensor, starts[tensor.untyped_storage().data_ptr()]) for tensor in tensors]
    whole = pages.tensor(0, end)
    for tensor, start in places:
        typed = whole[start:].view(tensor.dtype)
        offset = typed.storage_offset() + tensor.storage_offset()
        tensor.set_(typed.untyped_storage(), offset, tensor.size(), tensor.stride())

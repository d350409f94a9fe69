"""What autograd saves for a backward pass: how many bytes, whether they changed since, and where they wait.

Saved storages stay on the device, or move to a pool of host memory once a piece of the forward pass is over and come
back when the backward pass asks for them. Weights, and what the caller names as resident, are never moved nor counted:
they are there anyway.

Copies to a pinned pool do not make the host wait; copies back do, so that their slot can be given on at once.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet, WeakValueDictionary

import torch

from rollplex.memory.arena import Arena
from rollplex.memory.charge import Charge
from rollplex.memory.pool import ALIGNMENT, HostPool, Slot


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Where saved tensors wait, and whose budget counts them."""

    owner: str = "policy.tape"
    """Name in ledgers."""
    arena: Arena | None = None
    """Counts what is on the device, if there is a budget."""
    pool: HostPool | None = None
    """Takes what is moved off the device; without one everything stays."""


class SavedTensors:
    """Counts the storages that a graph keeps alive on the device, weights left out, and moves them to where they wait.

    >>> saved = SavedTensors(weights=(), keeping=Keeping(pool=HostPool(4096)))
    >>> x = torch.ones(1024, requires_grad=True)
    >>> with saved.counting():
    ...     y = x.exp().sum()
    >>> saved.nbytes
    4096
    >>> saved.settle()
    >>> saved.nbytes
    0
    >>> y.backward()
    >>> x.grad[:2]
    tensor([2.7183, 2.7183])
    """

    def __init__(self, weights: Collection[torch.Tensor], *, keeping: Keeping | None = None) -> None:
        self.keeping = Keeping() if keeping is None else keeping
        self._resident = {w.untyped_storage().data_ptr() for w in weights}
        self._held: WeakValueDictionary[int, _Held] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """Bytes on the device now."""
        return sum(held.nbytes for held in list(self._held.values()))

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count what is saved inside; enter it anew in every tick, since hooks belong to the thread."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield

    def settle(self, resident: Iterable[torch.Tensor] = ()) -> None:
        """A piece of the forward pass is over: what it saved goes where it waits, but for what stays anyway."""
        self._resident |= {tensor.untyped_storage().data_ptr() for tensor in resident}
        for key, held in list(self._held.items()):
            if key in self._resident:
                held.uncharge()
                del self._held[key]
            elif self.keeping.pool is not None and held.nbytes >= ALIGNMENT:  # less than a slot is not worth one
                held.leave(self.keeping.pool)
                del self._held[key]  # another storage may take the address

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key in self._resident:
            return _Saved(tensor)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(storage, self.keeping)
        return _Saved(tensor, held)


class _Saved:
    """One saved tensor: itself, or its place in a storage that may be elsewhere."""

    def __init__(self, tensor: torch.Tensor, held: _Held | None = None) -> None:
        # Detached, because a saved output that still knew its node would keep itself alive.
        self.tensor: torch.Tensor | None = tensor.detach()
        self.version = tensor._version
        self.held = held
        self.form = (tensor.dtype, tensor.device, tensor.storage_offset(), tensor.size(), tensor.stride())
        if held is not None:
            held.users.add(self)

    def check(self) -> None:
        """Refuse what was changed since it was saved."""
        if self.tensor is not None and self.tensor._version != self.version:
            raise RuntimeError(
                f"running a backward pass: a tensor of shape {tuple(self.tensor.shape)} that the forward pass saved was "
                "changed in place since. Weights must not change between a prefix and its suffix."
            )


class _Held:
    """One storage that a graph keeps alive, for as long as any of its saved tensors is."""

    def __init__(self, storage: torch.UntypedStorage, keeping: Keeping) -> None:
        self.key = storage.data_ptr()
        self.nbytes = storage.nbytes()
        self.storage: torch.UntypedStorage | None = storage
        self.users: WeakSet[_Saved] = WeakSet()
        self._keeping = keeping
        self._slot: Slot | None = None
        self._charge = self._charged()

    def _charged(self) -> Charge | None:
        arena = self._keeping.arena
        return None if arena is None else arena.charge(self._keeping.owner, self.nbytes)

    def uncharge(self) -> None:
        """Not on the device any more, or somebody else counts it."""
        if self._charge is not None:
            self._charge.free()

    def leave(self, pool: HostPool) -> None:
        """Move to the pool; nothing to do where no saved tensor is left."""
        assert self.storage is not None, "it leaves once"
        for user in self.users:
            user.check()
        slot = pool.take(self._keeping.owner, self.nbytes)
        slot.bytes[: self.nbytes].copy_(_bytes(self.storage), non_blocking=True)
        self._slot, self.storage = slot, None
        for user in self.users:
            user.tensor = None
        self.uncharge()

    def back(self, device: torch.device) -> torch.UntypedStorage:
        """The storage on the device; it stays until the last of its saved tensors was used."""
        if self.storage is None:
            assert self._slot is not None, "what is not on the device is in the pool"
            self._charge = self._charged()
            here = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
            here.copy_(self._slot.bytes[: self.nbytes])
            self._slot.free()
            self._slot, self.storage = None, here.untyped_storage()
        return self.storage

    def __del__(self) -> None:
        if self._slot is not None:
            self._slot.free()


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _unpack(saved: _Saved) -> torch.Tensor:
    saved.check()
    if saved.tensor is not None:
        return saved.tensor
    assert saved.held is not None, "only what is held leaves"
    dtype, device, offset, size, stride = saved.form
    return torch.empty(0, dtype=dtype, device=device).set_(saved.held.back(device), offset, size, stride)

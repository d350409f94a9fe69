"""A device with a budget and the host memory beside it: where a run's objects are, and when.

Objects that are there from step to step lie in regions of an arena, under their owners' names; what torch allocates
itself is charged to the same budget. Who comes and goes around a phase follows from the contracts. It knows no phase but
by name, and moves nothing in the middle of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock

import torch

from rollplex.memory.arena import Arena, Contents, Region
from rollplex.memory.contracts import CONTRACTS, Contract
from rollplex.memory.pool import HostPool
from rollplex.saved import Keeping, SavedTensors

ALIGNMENT = 64
"""Tensors of a region begin at multiples of this, as torch aligns its own."""

FIELDS = {"policy.boundary": "policy_prefix", "reference.boundary": "reference_prefix"}
"""Owner of what a step holds -> the field that holds it."""


class Memory:
    """Where the objects of a run live: give it to ``Run(..., memory=...)``.

    Residency has a keyword for each mechanism that is no phase's own: ``release_rollout`` frees the rollout's keys and
    values after decoding, ``page_reference`` has the reference's weights on the device only while they are used. The
    others are keywords of phases: ``Update(chunk_bytes=...)``, ``Prefix(tape=...)``.

    On a CPU main memory stands for the device and the budget is enforced; an ``arena`` of another device replaces both.

    >>> memory = Memory(budget_bytes=1 << 20, pool_bytes=1 << 20)
    >>> memory.buffer("engine.kv", 5000).shape
    torch.Size([5000])
    >>> memory.begin("decode"); memory.arena.owners()
    {'engine.kv': 8192}
    >>> memory.end("decode"); memory.arena.owners()
    {}
    """

    def __init__(
        self,
        *,
        budget_bytes: float = 0,
        pool_bytes: float = 0,
        release_rollout: bool = True,
        page_reference: bool = True,
        arena: Arena | None = None,
    ) -> None:
        if arena is not None and (budget_bytes or pool_bytes):
            raise ValueError(
                f"making a Memory: it was given an arena, whose budget is {arena.budget_bytes}, and budget_bytes="
                f"{budget_bytes}, pool_bytes={pool_bytes} beside it. Give one or the other."
            )
        if arena is None and (budget_bytes <= 0 or pool_bytes <= 0):
            raise ValueError(
                f"making a Memory: budget_bytes is {budget_bytes} and pool_bytes is {pool_bytes}; give both, or an arena"
            )
        # Whole bytes, also where somebody writes 1.5 * 2**30.
        self.arena = Arena.host(int(budget_bytes), pool=HostPool(int(pool_bytes))) if arena is None else arena
        self.release_rollout = release_rollout
        self.page_reference = page_reference
        self._tenants: dict[str, _Tenant] = {}
        self._users: Counter[str] = Counter()
        self._lock = RLock()

    @property
    def pool(self) -> HostPool:
        """The host memory beside the device."""
        return self.arena.pool

    def house(
        self, owner: str, tensors: Sequence[torch.Tensor], *, contents: Contents = "kept", stays: bool = False
    ) -> None:
        """Have tensors lie in a region of their own from now on: the same objects, with the same values, elsewhere.

        ``stays`` keeps the region on the device; otherwise it is away until a phase needs it. What is regenerable is
        zeros at first.
        """
        offsets, nbytes = [], 0
        for tensor in tensors:
            offsets.append(nbytes)
            nbytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if owner in self._tenants:
                raise ValueError(
                    f"moving {owner} into a memory: it holds another's already, an earlier run's. A memory serves one run at "
                    "a time: make another one, or have that run move out with its use(None)."
                )
            if not all(tensor.is_contiguous() for tensor in tensors):
                raise ValueError(
                    f"moving {owner} into a memory: some of it lies by columns, because it is shared with another trainer or "
                    "engine. What is shared lives in the region it is shared in; give the run no memory."
                )
            region = self.arena.region(owner, nbytes, contents=contents, resident=contents != "regenerable")
            places = [region.tensor(tuple(t.shape), t.dtype, offset=at) for t, at in zip(tensors, offsets, strict=True)]
            try:
                if contents != "regenerable":
                    for place, tensor in zip(places, tensors, strict=True):
                        place.copy_(tensor.detach())
                if not stays:
                    region.evict()
            except BaseException:
                region.free()
                raise
            # Last: a pool that is full has moved nothing.
            for place, tensor in zip(places, tensors, strict=True):
                tensor.data = place
            self._tenants[owner] = _Tenant(region, stays=stays)

    def buffer(self, owner: str, nbytes: int) -> torch.Tensor:
        """Bytes on the device whose contents nobody keeps; a larger request replaces them."""
        with self._lock:
            tenant = self._tenants.get(owner)
            if tenant is None or tenant.region.nbytes < nbytes:
                self.give_up(owner)
                region = self.arena.region(owner, nbytes, contents="regenerable")
                stays = owner == "engine.kv" and not self.release_rollout
                tenant = self._tenants[owner] = _Tenant(region, stays=stays, on_demand=True)
            tenant.region.admit()
            return tenant.region.bytes[:nbytes]

    def evict(self, owner: str) -> None:
        """Take an owner's pages away before its phase has ended."""
        self._tenants[owner].region.evict()

    @contextmanager
    def present(self, owner: str) -> Generator[None]:
        """An owner's region on the device within a block, and as it was after it."""
        with self._tenants[owner].region.paged_in():
            yield

    def give_up(self, owner: str) -> None:
        """Free an owner's region for good, if it has one."""
        with self._lock:
            tenant = self._tenants.pop(owner, None)
            if tenant is not None:
                tenant.region.free()

    def begin(self, phase: str) -> None:
        """A phase is about to run: what it uses is there."""
        with self._lock:
            own = [contract.owner for contract in _of(phase)]
            try:
                for owner in own:
                    tenant = self._tenants.get(owner)
                    if tenant is not None and not tenant.on_demand:
                        tenant.region.admit()
            except BaseException:  # all of it, or what was there before
                for owner in own:
                    if not self._users[owner]:
                        self._leave(owner)
                raise
            self._users.update(own)

    def end(self, phase: str) -> None:
        """A phase has ended: what nobody uses any more leaves."""
        with self._lock:
            for contract in _of(phase):
                self._users[contract.owner] -= 1
                if self._users[contract.owner] <= 0 and _over(contract, phase):
                    self._leave(contract.owner)

    @contextmanager
    def using(self, phase: str) -> Generator[None]:
        """A phase that is run by hand: what it uses is there within the block, and what it saves is counted."""
        self.begin(phase)
        try:
            with self.charging(phase):
                yield
        finally:
            self.end(phase)

    def spends(self, phase: str) -> list[str]:
        """Fields of the step whose memory a phase has used for the last time."""
        return [FIELDS[c.owner] for c in _of(phase) if c.owner in FIELDS and _over(c, phase)]

    def rest(self) -> None:
        """A step is over, or was broken off: only what stays is on the device."""
        with self._lock:
            self._users.clear()
            for owner in self._tenants:
                self._leave(owner)

    @contextmanager
    def charging(self, phase: str) -> Generator[None]:
        """Count what autograd saves inside, where the contracts give a phase activations of its own."""
        own = [c for c in _of(phase) if c.consumers == c.producers and c.autograd == "attached"]
        if not own:
            yield
            return
        housed = [tenant.region.bytes for tenant in self._tenants.values()]
        with SavedTensors(housed, keeping=Keeping(owner=own[0].owner, arena=self.arena)).counting():
            yield

    @contextmanager
    def reserved(self, owner: str, nbytes: int) -> Generator[None]:
        """Room in the budget within a block, for what operations take of it while they run."""
        charge = self.arena.charge(owner, nbytes)
        try:
            yield
        finally:
            charge.free()

    def _leave(self, owner: str) -> None:
        tenant = self._tenants.get(owner)
        if tenant is not None and not tenant.stays:
            tenant.region.evict()

    def __repr__(self) -> str:
        return f"Memory({self.arena!r}, {self.pool!r})"


@dataclass(frozen=True, slots=True)
class _Tenant:
    region: Region
    stays: bool
    """On the device from step to step."""
    on_demand: bool = False
    """Comes when its phase asks for it, not when the phase begins."""


def _of(phase: str) -> list[Contract]:
    """Contracts that a phase makes or reads."""
    return [c for c in CONTRACTS if phase in {name.lower() for name in (*c.producers, *c.consumers)}]


def _over(contract: Contract, phase: str) -> bool:
    """Whether an object may leave once this phase has ended: its last reader, or what can be read again at any time."""
    return "frozen" in contract.producers or contract.consumers[-1].lower() == phase

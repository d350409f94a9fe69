"""Who holds which bytes now: on the device, and on the host beside it.

Bytes are counted by storage, so that what many share counts once, under the first who names it. What lies in an arena is
counted by the arena, and only while it is resident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollplex.memory.arena import Arena
from rollplex.phases.phase import Phase
from rollplex.resource import Resource
from rollplex.step import Step

HELD = ("policy_prefix", "reference_prefix", "rollout")
"""Fields of a step that hold device memory."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """Bytes by owner at one moment."""

    arena: dict[str, int]
    """On the device, as its arena counts."""
    others: dict[str, int]
    """On the device besides."""
    host: dict[str, int]
    """In the pool of host memory beside it."""

    @property
    def device(self) -> dict[str, int]:
        """All on the device."""
        names = (*self.arena, *(name for name in self.others if name not in self.arena))
        return {name: self.arena.get(name, 0) + self.others.get(name, 0) for name in names}

    @classmethod
    def of(cls, phases: Sequence[Phase], step: Step | None, arena: Arena | None = None) -> Owners:
        """What phases and a step hold now.

        >>> from rollplex.phases.prefix import Prefix
        >>> from rollplex.policy import Policy
        >>> list(Owners.of([Prefix(Policy.tiny())], None).device)
        ['policy.weights']
        """
        others: dict[str, int] = {}
        # What the arena counts, and the pool beside it, which on a CPU is memory like any other.
        seen = set() if arena is None else {*arena.storages(), arena.pool.bytes.untyped_storage().data_ptr()}
        for phase in phases:
            for resource in resources(phase):
                if fresh := resource.bytes_beyond(seen):
                    others[resource.name] = others.get(resource.name, 0) + fresh
            others |= phase.held()
        for field in HELD:
            value = None if step is None else getattr(step, field)
            if value is not None:
                others |= value.memory(field)
        if arena is None:
            return cls(arena={}, others=others, host={})
        return cls(arena=arena.owners(), others=others, host=arena.pool.owners())


def resources(phase: Phase) -> tuple[Resource, ...]:
    """All that a phase reads or changes in place."""
    return (*phase.reads, *phase.mutates)


def shared(phases: Sequence[Phase]) -> dict[str, tuple[str, ...]]:
    """Resources that lie in bytes that others named before them -> those others, who have the bytes.

    >>> from rollplex.phases.decode import Decode
    >>> from rollplex.phases.prefix import Prefix
    >>> from rollplex.policy import Policy
    >>> policy = Policy.tiny()
    >>> shared([Prefix(policy), Decode(policy.engine())])
    {'engine.weights': ('policy.weights',)}
    """
    named: dict[str, Resource] = {}
    found: dict[str, tuple[str, ...]] = {}
    for resource in (resource for phase in phases for resource in resources(phase)):
        if resource.name in named:
            continue
        with_whom = tuple(name for name, other in named.items() if name not in found and other.overlaps(resource))
        if with_whom:
            found[resource.name] = with_whom
        named[resource.name] = resource
    return found

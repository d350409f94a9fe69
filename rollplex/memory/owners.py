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

    device: dict[str, int]
    """On the device."""
    host: dict[str, int]
    """In the pool of host memory beside it."""

    @classmethod
    def of(cls, phases: Sequence[Phase], step: Step | None, arena: Arena | None = None) -> Owners:
        """What phases and a step hold now.

        >>> from rollplex.phases.prefix import Prefix
        >>> from rollplex.policy import Policy
        >>> list(Owners.of([Prefix(Policy.tiny())], None).device)
        ['policy.weights']
        """
        device = {} if arena is None else arena.owners()
        seen = set() if arena is None else arena.storages()
        for phase in phases:
            for resource in resources(phase):
                if fresh := resource.bytes_beyond(seen):
                    device[resource.name] = device.get(resource.name, 0) + fresh
            device |= phase.held()
        for field in HELD:
            value = None if step is None else getattr(step, field)
            if value is not None:
                device |= value.memory(field)
        return cls(device=device, host={} if arena is None else arena.pool.owners())


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

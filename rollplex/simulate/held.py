"""What occupies device memory, and from when to when: residency as data.

An object is there always, or from the start of one phase to the end of another. Bytes are one device's. The rollout's KV
is not here: it grows with the tokens, and comes with the pieces of decode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rollplex.bounds import AMOUNT, expect
from rollplex.costs.costs import FIELDS


@dataclass(frozen=True, kw_only=True)
class Held:
    """One owner's bytes on each device of a pool."""

    owner: str
    """Who holds them, as in traces."""
    num_bytes: float
    """Bytes on one device."""
    pool: str = "all"
    """The pool whose devices hold them."""
    since: str | None = None
    """The field whose phase brings them by starting; None: always there."""
    until: str | None = None
    """The field whose phase ends them by finishing; ``since`` again where None."""
    keeps_cache: bool = False
    """Whether the rollout's KV lies in it, as in an engine's reserved pool."""

    def __post_init__(self) -> None:
        doing = f"saying what {self.owner!r} holds"
        expect(doing, vars(self), num_bytes=AMOUNT)
        if unknown := {self.since, self.until} - {None, *FIELDS}:
            raise ValueError(f"{doing}: no phase writes {unknown}; since and until are among {', '.join(FIELDS)}")
        if self.until is not None and self.since is None:
            raise ValueError(f"{doing}: it is always there, and until is {self.until!r}; say since when")

    @property
    def always(self) -> bool:
        """Whether it never leaves."""
        return self.since is None

    @property
    def last(self) -> str | None:
        """The field whose phase ends it."""
        return self.until or self.since


class Occupancy:
    """Who holds what now; one job's objects, by pool."""

    def __init__(self, objects: Iterable[Held]) -> None:
        self.objects = tuple(objects)
        self.reserved: Counter[str] = Counter()
        for held in self.objects:
            if held.keeps_cache:
                self.reserved[held.pool] += int(held.num_bytes)
        self.there: dict[str, dict[str, float]] = {}
        for held in self.objects:
            if held.always:
                self._add(held, 1)

    def started(self, field: str) -> bool:
        """A phase begins: what it brings is there. Whether anything changed."""
        return self._change([h for h in self.objects if h.since == field], 1)

    def finished(self, field: str) -> bool:
        """A phase has ended: what it ends is gone. Whether anything changed."""
        return self._change([h for h in self.objects if not h.always and h.last == field], -1)

    def cache(self, pool: str, num_bytes: int) -> None:
        """The rollout's KV is this large now; what lies in a reserved pool is counted there."""
        self.there.setdefault(pool, {})["rollout.kv"] = max(num_bytes - self.reserved[pool], 0)

    def total(self, pool: str) -> float:
        """Bytes on one device of a pool."""
        return sum(self.there.get(pool, {}).values())

    def _change(self, objects: list[Held], sign: int) -> bool:
        for held in objects:
            self._add(held, sign)
        return bool(objects)

    def _add(self, held: Held, sign: int) -> None:
        owners = self.there.setdefault(held.pool, {})
        owners[held.owner] = max(owners.get(held.owner, 0.0) + sign * held.num_bytes, 0.0)

"""Whether every object was on the device exactly between its first latency-critical use and its last use.

It reads a trace's ticks and memory samples against the contracts. It looks at the moments at which ticks begin, so what
comes and goes within one tick is not its matter, and of an object that is there by chunks or layers it cannot say how
much of it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollplex.memory.contracts import CONTRACTS, Contract, Phase, Stage
from rollplex.trace import ADMIT, MemorySample, Tick, Trace

Kind = Literal["early", "late", "absent"]
"""There before its first use; there after its last; not there while it was used."""

_STAGES: Mapping[Phase, Stage] = {
    "Decode": "P1",
    "Prefix(policy)": "P1",
    "Prefix(reference)": "P1",
    "Suffix": "P2",
    "Update": "P3",
}
"""Phase -> the stage whose extents apply to it."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """The first tick of a step at which an object was somewhere else than its contract says."""

    contract: Contract
    """Whose."""
    kind: Kind
    """In which way."""
    tick: Tick
    """What was beginning to run."""
    nbytes: int
    """Bytes of it on the device then."""
    use: Tick | None
    """The use next to it in time: the last one before where it stayed, the first one after where it came early."""

    def __str__(self) -> str:
        what, owner = self.contract.name, self.contract.owner
        where = f"step {self.tick.step}, {_named(self.tick)}"
        rule = f"Its contract: {self.contract.residency}."
        if self.kind == "absent":
            return f"{where}: {what} ({owner}) is used and was not on the device. {rule} Admit it before."
        held = f"{where}: {self.nbytes:,} bytes of {what} ({owner}) were on the device"
        if self.use is None:
            return f"{held} without a use. {rule} Evict or free it."
        if self.kind == "late":
            return f"{held} after the last use, {_named(self.use)}. {rule} Evict or free it there."
        return f"{held} before the first use, {_named(self.use)}. {rule} Admit it there."


@dataclass(frozen=True, kw_only=True)
class Lifetimes:
    """What a trace proves about residency."""

    violations: tuple[Violation, ...]
    """In order of time, at most one for each object in each step."""
    proven: Mapping[str, int]
    """Objects without a violation -> ticks at whose beginning it was looked where they are."""
    unseen: tuple[str, ...]
    """Objects that no sample names, of which nothing is proven."""

    @property
    def first(self) -> Violation | None:
        """The first violation in time, or None."""
        return self.violations[0] if self.violations else None

    def check(self) -> Lifetimes:
        """Itself, or the first violation as an error."""
        if self.first is not None:
            raise ResidencyError(self)
        return self

    def __str__(self) -> str:
        lines = [f"{name}: where it must be, at {num} ticks" for name, num in self.proven.items()]
        lines += [f"{violation}" for violation in self.violations]
        return "\n".join([*lines, *(f"{name}: not in the trace" for name in self.unseen)])


class ResidencyError(RuntimeError):
    """An object was not where its contract says."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        more = len(lifetimes.violations) - 1
        super().__init__(f"checking residency: {lifetimes.first}" + (f" (and {more} more)" if more else ""))


def lifetimes(trace: Trace, contracts: Sequence[Contract] = CONTRACTS) -> Lifetimes:
    """Hold a trace, measured or predicted, against contracts.

    >>> ticks = [Tick(0, "P1", "gpu", "decode", "token 0", 0.0, 1.0), Tick(0, "P2", "gpu", "suffix", "0", 1.0, 2.0)]
    >>> samples = [MemorySample(0, 0.0, {"rollout.kv": 8}), MemorySample(0, 2.0, {})]
    >>> kept = lifetimes(Trace(ticks=ticks, samples=samples, schedules={0: "Serial"}))
    >>> kept.first.contract.name, kept.first.kind, kept.first.tick.phase
    ('rollout KV', 'late', 'suffix')
    """
    ticks = sorted(trace.ticks, key=lambda tick: tick.start_s)
    samples = sorted(trace.samples, key=lambda sample: sample.time_s)
    if not ticks or not samples or samples[0].time_s > ticks[0].start_s:
        raise ValueError(
            f"checking residency: the trace has {len(ticks)} ticks and {len(samples)} memory samples, and no sample from "
            "before the first tick. Check the trace of a run, or a prediction of a job that says what it holds."
        )
    held = _held(ticks, samples)
    named = {_owner(name) for sample in samples for name, num in sample.owners.items() if num}
    seen = [contract for contract in contracts if named.intersection(contract.owners)]
    violations = [violation for contract in seen for violation in _violations(contract, ticks, held)]
    wrong = {violation.contract.name for violation in violations}
    return Lifetimes(
        violations=tuple(sorted(violations, key=lambda violation: violation.tick.start_s)),
        proven={contract.name: len(ticks) for contract in seen if contract.name not in wrong},
        unseen=tuple(contract.name for contract in contracts if contract not in seen),
    )


def _violations(contract: Contract, ticks: Sequence[Tick], held: Sequence[Mapping[str, int]]) -> list[Violation]:
    """The first violation of each step."""
    uses = _uses(contract, ticks)
    needed = {phase.lower() for phase in contract.consumers if _whole_for(contract, phase)}
    found: dict[int, Violation] = {}
    last: Tick | None = None  # the newest use that is over, for as long as the object has not left since
    for tick, owners in zip(ticks, held, strict=True):
        nbytes = sum(owners.get(owner, 0) for owner in contract.owners)
        around = next((use for use in uses if _within(tick, *use)), None)
        kind: Kind | None = None
        use: Tick | None = None
        if around is not None:
            last = around[1]
            if not nbytes and tick.phase in needed and tick.label != ADMIT:
                kind = "absent"
        elif not nbytes:
            last = None
        elif contract.category != "snapshot":  # made by the update before, and used by everything after
            after = next((first for first, _ in uses if first.start_s > tick.start_s), None)
            kind, use = ("late", last) if last is not None or after is None else ("early", after)
        if kind is not None and tick.step not in found:
            found[tick.step] = Violation(contract=contract, kind=kind, tick=tick, nbytes=nbytes, use=use)
    return list(found.values())


def _uses(contract: Contract, ticks: Sequence[Tick]) -> list[tuple[Tick, Tick]]:
    """In every step, the tick that begins first and the tick that ends last of the phases that make or read it."""
    phases = {phase.lower() for phase in (*contract.producers, *contract.consumers)}
    by_step: dict[int, list[Tick]] = {}
    for tick in ticks:
        if tick.phase in phases:
            by_step.setdefault(tick.step, []).append(tick)
    return [(mine[0], max(mine, key=lambda tick: tick.end_s)) for mine in by_step.values()]


def _within(tick: Tick, first: Tick, last: Tick) -> bool:
    """Whether a tick begins while an object is in use; what begins as the last use ends comes after it."""
    return first.start_s <= tick.start_s < last.end_s or tick in (first, last)


def _whole_for(contract: Contract, phase: Phase) -> bool:
    """Whether a reader must find all of it when a tick begins; what it makes itself comes in the course of it."""
    return phase not in contract.producers and contract.device.get(_STAGES[phase]) == "whole"


def _held(ticks: Sequence[Tick], samples: Sequence[MemorySample]) -> list[Mapping[str, int]]:
    """Bytes by owner when each tick began: a sample holds until the next."""
    times = [sample.time_s for sample in samples]
    return [_by_owner(samples[bisect_right(times, tick.start_s) - 1]) for tick in ticks]


def _by_owner(sample: MemorySample) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, num in sample.owners.items():
        totals[_owner(name)] = totals.get(_owner(name), 0) + num
    return totals


def _owner(name: str) -> str:
    """The name without the pool that a prediction for several pools puts before it."""
    return name.rpartition(": ")[2]


def _named(tick: Tick) -> str:
    return f"tick {tick.label!r} of {tick.phase}"

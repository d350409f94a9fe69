"""One slot of one step on the virtual clock: its pieces, which of them are done, and what it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rollplex.costs.costs import Order, Piece, total_s
from rollplex.interference import Interference
from rollplex.schedule import Slot, Stage, Timetable
from rollplex.simulate.job import Job

COMPUTING = ("policy_prefix", "reference_prefix", "suffix", "update")


@dataclass(eq=False)
class Work:
    """A slot in a step of a job."""

    job: Job
    """Whose it is."""
    step: int
    """Which step of it."""
    stage_index: int
    """Which stage of the step."""
    position: int
    """Where in the stage."""
    pieces: deque[Piece] | None = None
    """Pieces that have not begun; None before it starts."""
    parts_done: list[int] = field(default_factory=list)
    """Parts that are complete, in order."""
    num_seen: int = 0
    """Parts of a streamed input that were looked at."""
    finished: bool = False
    """Whether every piece is done."""

    @cached_property
    def stage(self) -> Stage:
        """Its stage."""
        return self.job.timetable.stages[self.stage_index]

    @cached_property
    def slot(self) -> Slot:
        """Its slot."""
        return self.stage.slots[self.position]

    @cached_property
    def field(self) -> str:
        """What its phase writes."""
        return self.slot.phase.writes

    @cached_property
    def lane(self) -> tuple[str, str]:
        """Pool and lane: where jobs share a pool, they share its lanes."""
        return self.pool, self.slot.lane

    @cached_property
    def pool(self) -> str:
        """The pool that it runs on."""
        return self.job.timetable.pool(self.slot.lane)

    @cached_property
    def label(self) -> str:
        """Name of its stage in traces."""
        return self.stage.name

    def open(self, order: Order, interference: Interference) -> None:
        """Ask for the pieces, and stretch them by what the policy adds once."""
        pieces = self._asked(order)
        delay = self._delay(interference)
        alone = total_s(pieces)
        if delay and alone > 0:
            factor = max(alone + delay, 0.0) / alone
            pieces = [piece.times(factor) for piece in pieces]
        self.pieces = deque(pieces)

    def _asked(self, order: Order) -> list[Piece]:
        """The pieces from the job's costs, which may be anybody's."""
        found: Any = self.job.costs.pieces(order)
        pieces: list[Any] = list(found) if isinstance(found, Iterable) else [found]
        if not all(isinstance(piece, Piece) for piece in pieces):
            raise ValueError(
                f"costing {self.slot.phase.name} of {self.job.name!r}: {type(self.job.costs).__name__}.pieces returned "
                f"{found!r}; return a list of Piece, empty where a phase costs nothing"
            )
        return pieces

    def _delay(self, interference: Interference) -> float:
        if self.field == "rollout" and _shares(self.job.timetable, self.stage, self.slot):
            return interference.decode_delay_s
        shared = any(
            _shares(self.job.timetable, stage, slot)
            for stage in self.job.timetable.stages
            for slot in stage.slots
            if slot.phase.writes == "rollout"
        )
        return interference.suffix_delay_s if self.field == "suffix" and shared else 0.0

    def next_piece(self, streamed: Work | None) -> Piece | None:
        """Take the next piece whose part has arrived; None if none has."""
        assert self.pieces is not None
        if streamed is None or streamed.finished:
            return self.pieces.popleft() if self.pieces else None
        while self.num_seen < len(streamed.parts_done):
            part = streamed.parts_done[self.num_seen]
            self.num_seen += 1
            for piece in self.pieces:
                if piece.part == part:
                    self.pieces.remove(piece)
                    return piece
        return None


def _shares(timetable: Timetable, stage: Stage, slot: Slot) -> bool:
    """Whether some compute of the stage runs on the same devices as the slot, on another lane."""
    pool = timetable.pool(slot.lane)
    return any(
        other.lane != slot.lane and timetable.pool(other.lane) == pool and other.phase.writes in COMPUTING
        for other in stage.slots
    )


def works_of(job: Job) -> list[Work]:
    """Every slot of every step, in the order in which lanes run them."""
    return [
        Work(job=job, step=step, stage_index=s, position=p)
        for step in range(job.num_steps)
        for s, stage in enumerate(job.timetable.stages)
        for p in range(len(stage.slots))
    ]

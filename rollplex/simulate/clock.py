"""The event loop: lanes run pieces, pieces slow each other down, and the clock jumps from one end of a piece to the next.

A lane runs one piece at a time. Between two events every rate is constant, so that the next event is a minimum and
nothing is stepped. It knows works and pieces, and nothing of models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rollplex.costs.costs import Kind, Order, Piece
from rollplex.interference import Interference
from rollplex.simulate.work import Work

LaneKey = tuple[str, str]


@dataclass(eq=False)
class Running:
    """A piece under way."""

    work: Work
    """Whose piece."""
    piece: Piece
    """The piece."""
    start_s: float
    """When it began."""
    left_s: float
    """What is left, in seconds of running alone."""


@dataclass(eq=False)
class Clock:
    """All works of a simulation, in time order."""

    works: Sequence[Work]
    """Every slot of every step of every job; a lane takes them in this order within a job."""
    devices: Mapping[str, int]
    """Devices of each pool."""
    interference: Interference
    """How lanes of one pool slow each other."""
    switch_s: float = 0.0
    """Time a lane needs to change from one job to another."""
    order: Callable[[Work], Order] = field(kw_only=True)
    """What to ask a work's costs for."""
    on_start: Callable[[Work, float], None] = field(kw_only=True)
    """Told when a work starts."""
    on_piece: Callable[[Work, Piece, float, float], None] = field(kw_only=True)
    """Told of every piece that has run, with its start and end."""
    on_finish: Callable[[Work, float], None] = field(kw_only=True)
    """Told when a work is done."""

    def __post_init__(self) -> None:
        self.now = 0.0
        self.running: dict[LaneKey, Running] = {}
        self.busy: dict[str, float] = dict.fromkeys(self.devices, 0.0)
        self.current: dict[LaneKey, Work] = {}
        self.last: dict[LaneKey, Work] = {}
        self.waiting: dict[LaneKey, dict[str, deque[Work]]] = {}
        self.index = {(w.job.name, w.step, w.field): w for w in self.works}
        self.open_stage = {(w.job.name, w.step): 0 for w in self.works}
        self.left: dict[tuple[str, int, int], int] = {}
        for work in self.works:
            self.waiting.setdefault(work.lane, {}).setdefault(work.job.name, deque()).append(work)
            key = (work.job.name, work.step, work.stage_index)
            self.left[key] = self.left.get(key, 0) + 1

    def run(self) -> None:
        """Until every work is done."""
        while True:
            while self._start_what_can():
                pass
            if not self.running:
                break
            self._jump()
        undone = [w for w in self.works if not w.finished]
        if undone:
            stuck = ", ".join(sorted({f"{w.slot.phase.name} of step {w.step}" for w in undone})[:5])
            raise RuntimeError(
                f"simulating: nothing can run any more, and these have not: {stuck}. Look at what they wait for: print the "
                "timetable."
            )

    def _start_what_can(self) -> bool:
        """Give every idle lane its next piece; whether anything changed."""
        changed = False
        for lane in self.waiting:
            if lane in self.running:
                continue
            work = self.current.get(lane) or self._choose(lane)
            if work is None:
                continue
            if work.pieces is None:
                work.open(self.order(work), self.interference)
                self._switch(lane, work)
                self.current[lane] = work
                self.on_start(work, self.now)
                changed = True
            piece = work.next_piece(self._streamed(work))
            if piece is not None:
                self.running[lane] = Running(work, piece, self.now, piece.seconds)
                changed = True
            elif not work.pieces and self._inputs_closed(work):
                self._finish(lane, work)
                changed = True
        return changed

    def _choose(self, lane: LaneKey) -> Work | None:
        """A work of the lane that may start; within a job, lanes keep their order.

        A job keeps the lane to the end of its stage; then the job that has come least far goes first.
        """
        ready = [works[0] for works in self.waiting[lane].values() if works and self._may_start(works[0])]
        if not ready:
            return None
        last = self.last.get(lane)
        goes_on = [
            w for w in ready if last is not None and (w.job, w.step, w.stage) == (last.job, last.step, last.stage)
        ]
        chosen = goes_on[0] if goes_on else min(ready, key=lambda w: w.step)
        return self.waiting[lane][chosen.job.name].popleft()

    def _may_start(self, work: Work) -> bool:
        name, step = work.job.name, work.step
        table = work.job.timetable
        if work.stage_index > self.open_stage[name, step]:
            return False
        if step == 0:
            return True
        if not table.pipelined:
            return self.open_stage[name, step - 1] >= len(table.stages)
        if work.field in ("reference_prefix", "rewards"):
            return True  # no weights that are trained: it may run ahead
        rollout = work.field == "rollout"
        needed = "published" if rollout and (name, 0, "published") in self.index else "update"
        version = step - 1 - (table.staleness if rollout else 0)
        return version < 0 or self.index[name, version, needed].finished

    def _streamed(self, work: Work) -> Work | None:
        """The latest of the works whose parts this one reads as they come; None if it reads none."""
        streams = [f for f in work.slot.streams if (work.job.name, work.step, f) in self.index]
        # Rewards follow the rollout, group by group: what has a reward has a response.
        return self.index[work.job.name, work.step, streams[-1]] if streams else None

    def _inputs_closed(self, work: Work) -> bool:
        streamed = self._streamed(work)
        return streamed is None or streamed.finished

    def _switch(self, lane: LaneKey, work: Work) -> None:
        previous = self.last.get(lane)
        self.last[lane] = work
        if self.switch_s and previous is not None and previous.job is not work.job and work.pieces is not None:
            work.pieces.appendleft(Piece(f"switch from {previous.job.name}", self.switch_s, "copy", busy=0.0))

    def _jump(self) -> None:
        """Advance to the end of the piece that ends first."""
        factors: dict[LaneKey, float] = {}
        for pool in {lane[0] for lane in self.running}:
            lanes = [lane for lane in self.running if lane[0] == pool]
            kinds: list[Kind] = [self.running[lane].piece.kind for lane in lanes]
            factors.update(zip(lanes, self.interference.slowdowns(kinds), strict=True))
        elapsed = min(run.left_s * factors[lane] for lane, run in self.running.items())
        self._count_busy(elapsed)
        self.now += elapsed
        for lane, run in list(self.running.items()):
            run.left_s -= elapsed / factors[lane]
            if run.left_s <= 1e-12 * max(1.0, run.piece.seconds):
                del self.running[lane]
                run.work.parts_done.extend(run.piece.ready)
                self.on_piece(run.work, run.piece, run.start_s, self.now)

    def _count_busy(self, elapsed: float) -> None:
        for pool in self.busy:
            shares = [r.piece.busy for lane, r in self.running.items() if lane[0] == pool and r.piece.kind != "host"]
            self.busy[pool] += elapsed * max(shares, default=0.0)

    def _finish(self, lane: LaneKey, work: Work) -> None:
        work.finished = True
        self.current.pop(lane)
        key = (work.job.name, work.step, work.stage_index)
        self.left[key] -= 1
        step = work.job.name, work.step
        while self.left.get((*step, self.open_stage[step]), 1) == 0:
            self.open_stage[step] += 1
        self.on_finish(work, self.now)

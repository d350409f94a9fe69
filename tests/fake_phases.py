"""Phases without a model: a few ticks each, written down in a log, so that what an executor did can be read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rollplex.board import Board
from rollplex.execute import ExecutorName, execute
from rollplex.feed import Ready, Waiting
from rollplex.phases.phase import Phase, Tick
from rollplex.prompts import PromptBatch
from rollplex.recorder import Recorder
from rollplex.resource import Resource
from rollplex.schedule import Slot, Stage, Timetable
from rollplex.step import Step
from rollplex.trace import Trace

Script = Callable[..., Generator[Tick, None, Any]]
"""What a fake phase does, given its inputs by keyword."""


@dataclass(frozen=True)
class Value:
    """What a fake phase makes."""

    of: object = None

    def memory(self, field: str) -> dict[str, int]:
        return {field: 1}

    def parts(self) -> Any:
        return iter(self.of)  # type: ignore[call-overload]


class Fake(Phase):
    """A phase that follows a script."""

    def __init__(
        self,
        writes: str,
        script: Script | None = None,
        *,
        needs: Sequence[str] = (),
        may: Sequence[str] = (),
        reads: Sequence[Resource] = (),
        mutates: Sequence[Resource] = (),
    ) -> None:
        self._writes = writes
        self._script = counted([], writes, 1) if script is None else script
        self._inputs = {**dict.fromkeys(needs, True), **dict.fromkeys(may, False)}
        self._reads, self._mutates = tuple(reads), tuple(mutates)

    @property
    def name(self) -> str:
        return f"{self._writes} phase"

    @property
    def writes(self) -> str:
        return self._writes

    @property
    def reads(self) -> tuple[Resource, ...]:
        return self._reads

    @property
    def mutates(self) -> tuple[Resource, ...]:
        return self._mutates

    def inputs(self) -> dict[str, bool]:
        return self._inputs

    def run(self, **fields: Any) -> Generator[Tick, None, Any]:
        return self._script(**fields)


def counted(log: list[str], name: str, num: int) -> Script:
    """So many ticks, each written down."""

    def script(**_: Any) -> Generator[Tick, None, Any]:
        for i in range(num):
            log.append(f"{name}{i}")
            yield f"tick {i}"
        return Value(name)

    return script


def making(log: list[str], name: str, parts: Sequence[int]) -> Script:
    """A part a tick."""

    def script(**_: Any) -> Generator[Tick, None, Any]:
        for part in parts:
            log.append(f"{name}{part}")
            yield Ready(part, f"part {part}")
        return Value(parts)

    return script


def reading(log: list[str], name: str, field: str) -> Script:
    """A tick for each part of a field, whole or still being made; it passes each part on."""

    def script(**fields: Any) -> Generator[Tick, None, Any]:
        read = []
        for part in fields[field].parts():
            if isinstance(part, Waiting):
                yield part
                continue
            log.append(f"{name}{part}")
            read.append(part)
            yield Ready(part, f"part {part}")
        return Value(tuple(read))

    return script


def failing(error: BaseException, after: int = 1) -> Script:
    """Some ticks, then an error."""

    def script(**_: Any) -> Generator[Tick, None, Any]:
        for i in range(after):
            yield f"tick {i}"
        raise error

    return script


def weights(name: str = "weights", of: torch.Tensor | None = None) -> Resource:
    return Resource(name, (torch.zeros(4) if of is None else of,))


def slot(phase: Phase, lane: str, *, streams: Sequence[str] = (), share: float = 1.0) -> Slot:
    """A slot that takes everything that its phase knows."""
    return Slot(phase=phase, lane=lane, takes=tuple(phase.inputs()), streams=tuple(streams), share=share)


def table(*stages: Sequence[Slot]) -> Timetable:
    return Timetable(name="Fake", stages=tuple(Stage(name=f"P{i}", slots=tuple(s)) for i, s in enumerate(stages)))


def board() -> Board:
    return Board(Step(index=0, seed=0, version=0, prompts=PromptBatch(prompts=())))


def run(timetable: Timetable, executor: ExecutorName = "interleave", on: Board | None = None) -> tuple[Step, Trace]:
    """Execute on a fresh board, or on the one given."""
    on = board() if on is None else on
    phases = [s.phase for stage in timetable.stages for s in stage.slots]
    recorder = Recorder(Trace(), phases, torch.device("cpu"))
    execute(timetable, on, recorder, executor)
    return on.step, recorder.trace

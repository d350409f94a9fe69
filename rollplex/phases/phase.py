"""What a phase is.

A phase's ``run`` is a generator: its parameters are the `Step` fields that it reads, its return value is the field that
it writes, and each ``yield`` ends a tick, one bounded piece of work after which it may be paused. A phase knows no other
phase, writes to no `Step` and no `Trace`, and draws randomness only from the seeds in its inputs.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rollplex.feed import Ready, Waiting
from rollplex.interrupts import held_back
from rollplex.resource import Resource

if TYPE_CHECKING:
    from rollplex.memory.memory import Memory

Tick = str | Ready[Any] | Waiting
"""What ``run`` yields: a label, a finished part of its value, or that its inputs have not arrived."""


class Phase(ABC):
    """One phase of a training step; call it by hand, or let a schedule run it."""

    memory: Memory | None = None
    """The device with a budget that it runs in, if any."""
    unbroken: bool = False
    """Whether an interrupt waits for the end of its ticks, because half of one would leave what is of no use."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in timetables and traces."""

    @property
    @abstractmethod
    def writes(self) -> str:
        """The `Step` field that it fills."""

    @property
    def reads(self) -> tuple[Resource, ...]:
        """Resources that it reads while it runs."""
        return ()

    @property
    def mutates(self) -> tuple[Resource, ...]:
        """Resources that it changes in place while it runs."""
        return ()

    def held(self) -> dict[str, int]:
        """Bytes that it keeps between ticks and steps besides its resources, by owner."""
        return {}

    def move_in(self, memory: Memory | None) -> None:
        """Run in a memory from now on, or where torch allocates; what its resources are, moves with it."""
        self.memory = memory

    @abstractmethod
    def run(self, *args: Any, **fields: Any) -> Generator[Tick, None, Any]:
        """Do the work in ticks; the generator's value is the field that the phase writes."""

    def inputs(self) -> dict[str, bool]:
        """Names of the `Step` fields that ``run`` takes -> whether each is required."""
        parameters = inspect.signature(self.run).parameters.values()
        return {p.name: p.default is inspect.Parameter.empty for p in parameters}

    def __call__(self, *args: Any, **fields: Any) -> Any:
        """Run to the end and return the value: ``rollout = decode(prompts)``."""
        generator = self.run(*args, **fields)
        with nullcontext() if self.memory is None else self.memory.using(self.name):
            try:
                while True:
                    with held_back() if self.unbroken else nullcontext():
                        tick = next(generator)
                    if isinstance(tick, Waiting):
                        raise RuntimeError(f"running {self.name!r} by hand: an input is a feed that is still open")
            except StopIteration as stop:
                return stop.value
            finally:
                with held_back():  # an update that is broken off goes on to its end, while what it uses is still there
                    generator.close()

    def __repr__(self) -> str:
        return self.name

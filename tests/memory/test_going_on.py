"""After what goes wrong within a budget, a run goes on: nothing is half moved, and nothing is held by a traceback."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator
from typing import Any

import pytest
import torch
from tiny_policy import checksum, moved, prompts, responses, task, tiny

from rollplex.feed import Waiting
from rollplex.losses import GRPO
from rollplex.memory.arena import OutOfDeviceMemory
from rollplex.memory.memory import Memory
from rollplex.memory.pool import HostPoolFullError
from rollplex.optim_streamed import StreamedAdamW
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase, Tick
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference
from rollplex.run import Run
from rollplex.schedules import OnePrefill, Rollplex

MIB = 2**20
WEIGHTS = 10_088_448
"""Bytes of the tiny model in float32, in whole pages."""

SMALL: dict[str, dict[str, Any]] = {
    "no weights": {"budget_bytes": WEIGHTS // 2, "pool_bytes": 96 * MIB},
    "no reference": {"budget_bytes": WEIGHTS + MIB, "pool_bytes": 96 * MIB},
    "no reference in the pool": {"budget_bytes": 64 * MIB, "pool_bytes": WEIGHTS // 2},
    "no state in the pool": {"budget_bytes": 64 * MIB, "pool_bytes": 2 * WEIGHTS},
}
"""Each too small for another of the objects that move."""


def roomy() -> Memory:
    return Memory(budget_bytes=64 * MIB, pool_bytes=96 * MIB)


def phases(policy: Policy, reference: Reference | None, reward: Any = checksum) -> list[Phase]:
    """With a streamed optimizer and, if there is one, a paged reference."""
    return [
        Prefix(policy),
        *([] if reference is None else [Prefix(reference)]),
        Decode(policy.engine(), group=3, max_new_tokens=5),
        Reward([reward]),
        Suffix(policy, reference, loss=GRPO(beta=0.0 if reference is None else 0.04)),
        Update(policy, lr=1e-3, chunk_bytes=MIB),
    ]


def make(memory: Memory) -> tuple[Policy, Run]:
    policy = tiny(torch.float32)
    return policy, Run(task(), phases(policy, Reference(policy)), Rollplex(), prompts=2, memory=memory)


@pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
def test_where_not_all_has_room_nothing_moves(sizes: dict[str, Any]) -> None:
    """From one memory to a smaller one; the run goes on where it was, with its numbers."""
    memory = roomy()
    policy, run = make(memory)
    list(run.steps(1))
    small, before = Memory(**sizes), memory.arena.owners()
    with pytest.raises((OutOfDeviceMemory, HostPoolFullError)):
        run.use(small)
    assert run.memory is policy.memory is memory
    assert (small.arena.owners(), small.pool.owners()) == ({}, {})
    assert memory.arena.owners() == before
    list(run.steps(1))
    twin, other = make(roomy())
    list(other.steps(2))
    assert moved(twin, policy.snapshot()) == 0


@pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
def test_a_run_that_could_not_be_made_leaves_its_policy_where_it_was(sizes: dict[str, Any]) -> None:
    policy = tiny(torch.float32)
    reference, start = Reference(policy), policy.snapshot()
    small = Memory(**sizes)
    with pytest.raises((OutOfDeviceMemory, HostPoolFullError)):
        Run(task(), phases(policy, reference), prompts=2, memory=small)
    assert (policy.memory, reference.memory, small.arena.owners(), small.pool.owners()) == (None, None, {}, {})
    assert moved(policy, start) == 0
    assert all(map(torch.equal, reference.weights.tensors, policy.weights.tensors))


class Never(Phase):
    """An update that waits for what never comes."""

    @property
    def name(self) -> str:
        return "update"

    @property
    def writes(self) -> str:
        return "update"

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.held_at_close: dict[str, int] = {}

    def run(self) -> Generator[Tick, None, None]:
        try:
            while True:
                yield Waiting()
        finally:
            assert self.memory is not None
            self.held_at_close = self.memory.arena.owners()


class Fails:
    """A reward function that raises in its second call."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, **columns: Any) -> list[float]:
        self.calls += 1
        if self.calls == 2:
            raise self.error
        return checksum(**columns)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_the_traceback_of_a_broken_step_holds_nothing_on_the_device(error: BaseException) -> None:
    """A notebook keeps it; the tape and the boundaries of the broken step would take the room of the next one's."""
    memory, policy = roomy(), tiny(torch.float32)
    run = Run(task(), phases(policy, None, reward=Fails(error)), OnePrefill(), prompts=2, memory=memory)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - either of the two
        run.step()
    assert caught.value.__traceback__ is not None
    assert memory.arena.owners()["policy.tape"] > 0, "in run.last, until the next step begins"
    run.last = None
    assert set(memory.arena.owners()) == {"policy.weights"}


def test_making_a_run_again_and_again_takes_no_more_of_the_pool() -> None:
    """As where a notebook's cell is run again with the same memory: an optimizer that nobody holds gives its state back."""
    policy: Policy = tiny(torch.float32)
    memory = Memory(budget_bytes=64 * MIB, pool_bytes=5 * WEIGHTS)  # of two optimizers at once
    runs = []
    for _ in range(4):
        runs[:] = [Run(task(), phases(policy, None), Rollplex(), prompts=2, memory=memory)]
    gc.collect()
    assert 2 * WEIGHTS <= memory.pool.owners()["policy.optimizer"] < 3 * WEIGHTS


def test_a_phase_by_hand_that_has_no_room_leaves_nothing_behind() -> None:
    """The suffix wants the reference and the gradients, of which the first would fit."""
    memory = Memory(budget_bytes=2 * WEIGHTS + 8 * MIB, pool_bytes=96 * MIB)
    policy, run = make(memory)
    prefix, frozen, _, _, suffix, _ = run.phases
    batch = prompts("one image")
    state, other = prefix(batch), frozen(batch)
    before = memory.arena.owners()
    with pytest.raises(OutOfDeviceMemory):
        suffix(batch, state, *responses(policy, batch), other)
    assert memory.arena.owners() == before


def by_hand() -> Policy:
    """A policy after a suffix and an update that were called by hand, in a memory."""
    policy, run = make(roomy())
    prefix, frozen, _, _, suffix, update = run.phases
    batch = prompts("one image")
    stats = suffix(batch, prefix(batch), *responses(policy, batch), frozen(batch))
    try:
        update(stats)
    except KeyboardInterrupt:
        assert policy.version == 1
    return policy


def test_an_update_by_hand_that_is_interrupted_ends_while_what_it_uses_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its chunks lie in a buffer that is taken away once the phase is over."""
    expected, real, calls = by_hand().snapshot(), StreamedAdamW._turn, list[int]()

    def turn(self: StreamedAdamW, *place: Any) -> None:
        calls.append(1)
        real(self, *place)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(StreamedAdamW, "_turn", turn)
    assert moved(by_hand(), expected) == 0
    assert len(calls) > 3


def test_a_phase_by_hand_is_closed_while_what_it_uses_is_there() -> None:
    """Wherever it is broken off."""
    memory = roomy()
    _, run = make(memory)
    phase = Never(memory)
    assert run.memory is memory
    assert "policy.gradients" not in memory.arena.owners()
    with pytest.raises(RuntimeError, match="still open"):
        phase()
    assert phase.held_at_close["policy.gradients"] == WEIGHTS
    assert "policy.gradients" not in memory.arena.owners()


def test_moving_out_gives_the_whole_pool_back() -> None:
    """Streamed state goes to host memory of its own, and is in a ledger with its own bytes; and back."""
    memory = roomy()
    policy, run = make(memory)
    list(run.steps(1))
    for _ in range(2):
        run.use(None)
        assert (memory.arena.owners(), memory.pool.owners()) == ({}, {})
        assert 2 * WEIGHTS <= run.recorder.owners(None).device["optimizer.state"] < 3 * WEIGHTS
        run.use(memory)
        assert set(memory.pool.owners()) == {"policy.optimizer", "reference.weights"}
    list(run.steps(1))
    twin, other = make(roomy())
    list(other.steps(2))
    assert moved(twin, policy.snapshot()) == 0


def test_a_run_whose_policy_another_run_took_away_takes_it_back() -> None:
    """Two runs in turn, one of them within a budget: there it is enforced, and residency proven, every time."""
    memory = roomy()
    policy, run = make(memory)
    free = Run(task(), phases(policy, Reference(policy)), Rollplex(), prompts=2)
    assert policy.memory is None
    for _ in range(2):
        list(run.steps(1))
        assert policy.memory is memory
        assert set(memory.arena.owners()) == {"policy.weights"}
        list(free.steps(1))
        assert policy.memory is None
    run.trace.check_residency()
    assert run.trace.peak_bytes() > 3 * WEIGHTS


def test_a_look_at_what_is_away_is_refused_once_and_costs_nothing() -> None:
    """Between steps gradients and reference are not there: a read gives zeros, the next step says so, and then goes on."""
    policy, run = make(roomy())
    list(run.steps(1))
    for phase in run.phases[:2]:
        assert isinstance(phase, Prefix)
        tensor = (policy.gradients if phase.owner is policy else phase.owner.weights).tensors[0]
        assert not tensor.any()
        with pytest.raises(RuntimeError, match="while it was evicted"):
            run.step()
    list(run.steps(1))
    twin, other = make(roomy())
    list(other.steps(2))
    assert moved(twin, policy.snapshot()) == 0


def test_sizes_may_be_written_as_products() -> None:
    """1.5 GiB is no whole number in Python."""
    memory = Memory(budget_bytes=1.5 * MIB, pool_bytes=0.5 * MIB)
    assert (memory.arena.budget_bytes, memory.pool.nbytes) == (3 * MIB // 2, MIB // 2)


def test_an_arena_and_sizes_beside_it_are_refused() -> None:
    """Sizes that would be ignored."""
    with pytest.raises(ValueError, match="given an arena, whose budget is 67108864, and budget_bytes=5"):
        Memory(budget_bytes=5, arena=roomy().arena)

"""Interrupts wait for the end of what must not be left half done."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
import torch
from test_optim import fill_gradients
from tiny_policy import moved, phases, task, tiny

from rollplex import optim, optim_streamed
from rollplex.interrupts import held_back
from rollplex.optim import AdamW
from rollplex.optim_streamed import StreamedAdamW
from rollplex.phases.update import Update
from rollplex.policy import Policy
from rollplex.recorder import Recorder
from rollplex.run import Run
from rollplex.schedules import Serial

CHUNKS = pytest.mark.parametrize("chunk_bytes", [None, 2**21], ids=["AdamW", "StreamedAdamW"])
EXECUTORS = pytest.mark.parametrize("executor", ["interleave", "threads"])


def test_an_interrupt_is_raised_at_the_end_and_only_then() -> None:
    handler, done = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_error_is_not_lost_to_an_interrupt() -> None:
    def work() -> None:
        with held_back():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("x")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, ValueError)


def test_another_thread_goes_through() -> None:
    """It is never interrupted, and may set no handler."""
    done: list[int] = []

    def work() -> None:
        with held_back():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


def update(policy: Policy, optimizer: Any) -> None:
    fill_gradients(policy, 0)
    norm = optimizer.norm()
    for ticks in (optimizer.prepare(), optimizer.commit(0, norm)):
        list(ticks)


@pytest.fixture(scope="module")
def whole() -> dict[str, torch.Tensor]:
    policy = tiny(torch.float32)
    update(policy, AdamW(policy))
    return policy.snapshot()


@pytest.mark.parametrize("call", [1, 3, 8])
def test_a_streamed_update_that_is_interrupted_in_a_chunk_is_made_whole(
    call: int, whole: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of its arithmetic, where the time goes; the next update is that of one without an interrupt."""
    calls, real = [], optim_streamed.adamw

    def interrupted(*tensors: Any, **numbers: Any) -> None:
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        real(*tensors, **numbers)

    monkeypatch.setattr(optim_streamed, "adamw", interrupted)
    policy = tiny(torch.float32)
    optimizer = StreamedAdamW(policy, chunk_bytes=2**21)
    with pytest.raises(KeyboardInterrupt):
        update(policy, optimizer)
    assert len(calls) == optimizer.num_chunks > 8
    assert moved(policy, whole) == 0


def test_a_resident_update_that_is_interrupted_is_made_whole(
    whole: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of its tensors."""
    real, calls = torch.Tensor.lerp_, []

    def interrupted(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(self, *args, **options)

    monkeypatch.setattr(torch.Tensor, "lerp_", interrupted)
    policy = tiny(torch.float32)
    with pytest.raises(KeyboardInterrupt):
        update(policy, AdamW(policy))
    assert len(calls) == len(policy.weights.tensors) > 3
    assert moved(policy, whole) == 0


def test_threads_end_their_tick_before_a_step_is_left() -> None:
    """While one is in the middle of it: the interrupt is what is raised, and the step can be made again."""
    main = threading.main_thread().ident
    assert main is not None
    calls: list[int] = []

    def slow(completion_ids: list[list[int]], **_: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 1:
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.2)  # the thread that waits is interrupted meanwhile
        return [float(sum(ids) % 97) for ids in completion_ids]

    run = Run(task(), phases(tiny(), rewards=[slow]), Serial(), prompts=2, executor="threads")
    with pytest.raises(KeyboardInterrupt):
        run.step()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollplex-")]
    assert run.step().filled[-1] == "update"


def test_an_interrupt_while_threads_start_waits_for_their_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a thread's first tick and the return of what started it."""
    real, started = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        real(self)
        if self.name.startswith("rollplex-"):
            started.append(self)
            if len(started) == 1:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start)
    run = Run(task(), phases(tiny()), Serial(), prompts=2, executor="threads")
    with pytest.raises(KeyboardInterrupt):
        run.step()
    assert not [thread for thread in started if thread.is_alive()]
    assert run.step().filled[-1] == "update"


def interrupt_at(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> list[int]:
    """Interrupt the main thread in the course of a function's call of this number, from 1."""
    real, main, calls = getattr(owner, name), threading.main_thread().ident, list[int]()
    assert main is not None

    def interrupted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.05)  # the thread that waits is interrupted meanwhile
        return real(*args, **options)

    patch.setattr(owner, name, interrupted)
    return calls


def make(chunk_bytes: int | None, executor: Any = "interleave") -> tuple[Policy, Run]:
    policy = tiny(torch.float32)
    made = [*phases(policy)[:-1], Update(policy, lr=1e-3, chunk_bytes=chunk_bytes)]
    return policy, Run(task(), made, Serial(), prompts=2, executor=executor)


@pytest.fixture(scope="module")
def two_steps() -> dict[str, torch.Tensor]:
    policy, run = make(None)
    list(run.steps(2))
    return policy.snapshot()


@CHUNKS
@EXECUTORS
@pytest.mark.parametrize("call", [1, 40, 66])
def test_a_step_whose_update_is_interrupted_is_whole_and_not_made_again(
    chunk_bytes: int | None,
    executor: Any,
    call: int,
    two_steps: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the first of its tensors, between them and at the last: the run goes on with the next step's prompts."""
    policy, run = make(chunk_bytes, executor)
    with monkeypatch.context() as patch:
        calls = interrupt_at(patch, torch.Tensor, "lerp_", call)
        with pytest.raises(KeyboardInterrupt):
            run.step()
    assert len(calls) >= len(policy.weights.tensors) == 66
    assert run.last is not None
    assert run.last.update is not None
    assert (run.next_index, policy.version, run.last.update.version) == (1, 1, 1)
    assert [tick.label for tick in run.trace.ticks if tick.phase == "update"][-1] == "end"
    assert [step.index for step in run.steps(1)] == [1]
    assert moved(policy, two_steps) == 0


@CHUNKS
@EXECUTORS
def test_a_step_that_is_interrupted_before_its_first_weight_moves_is_made_again(
    chunk_bytes: int | None, executor: Any, two_steps: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the gradient's norm is taken."""
    policy, run = make(chunk_bytes, executor)
    with monkeypatch.context() as patch:
        interrupt_at(patch, optim if chunk_bytes is None else optim_streamed, "gradient_norm", 1)
        with pytest.raises(KeyboardInterrupt):
            run.step()
    assert run.last is not None
    assert (run.next_index, policy.version, run.last.update) == (0, 0, None)
    assert [step.index for step in run.steps(2)] == [0, 1]
    assert moved(policy, two_steps) == 0


def test_a_step_that_is_interrupted_after_its_update_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the trace is closed."""
    _, run = make(None)
    with monkeypatch.context() as patch:
        interrupt_at(patch, Recorder, "finish", 1)
        with pytest.raises(KeyboardInterrupt):
            run.step()
    assert run.next_index == 1


def test_a_second_interrupt_waits_for_the_end_of_the_update_as_well(
    two_steps: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, run = make(2**21)
    with monkeypatch.context() as patch:
        interrupt_at(patch, torch.Tensor, "lerp_", 1)
        interrupt_at(patch, torch.Tensor, "lerp_", 20)
        with pytest.raises(KeyboardInterrupt):
            run.step()
    assert run.next_index == 1
    list(run.steps(1))
    assert moved(policy, two_steps) == 0

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

from rollplex import optim_streamed
from rollplex.interrupts import held_back
from rollplex.optim import AdamW
from rollplex.optim_streamed import StreamedAdamW
from rollplex.policy import Policy
from rollplex.run import Run
from rollplex.schedules import Serial


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

"""Processes that answer questions: started together, asked together, ended together whatever happens.

It knows pipes and deadlines. What a process does is its own: an object with ``answer(word, *arguments)``.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self


class Member(Protocol):
    """What a process of a crew is."""

    def answer(self, word: str, *arguments: Any) -> Any:
        """Answer a question."""
        ...


class CrewError(RuntimeError):
    """A process of a crew failed, died, or did not answer in time; all of them have been ended."""


class Crew:
    """A process for each of ``arguments``, which makes a `Member` by ``member(*arguments)`` and answers with it.

    Processes are forked from one that has imported ``preload`` and done nothing else, so that the libraries are
    imported once and no thread is copied. They end with the block, with this process, or at the deadline.
    """

    def __init__(
        self,
        member: Callable[..., Member],
        arguments: Sequence[tuple[Any, ...]],
        *,
        preload: str = __name__,
        timeout_s: float = 300.0,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload])
        self._timeout_s = timeout_s
        self._pipes: list[Connection] = []
        self._processes: list[ForkServerProcess] = []
        for index, each in enumerate(arguments):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, member, each), name=f"rank {index}", daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, word: str, *arguments: Any) -> list[Any]:
        """Every process's answer to a question, in order; all work on it at the same time."""
        for pipe in self._pipes:
            # Bytes, not objects: a tensor in a pickled object would be moved to shared memory and need its sender.
            pipe.send_bytes(pickle.dumps((word, arguments)))
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + self._timeout_s
        while len(answers) < len(self._pipes):
            pending = [pipe for i, pipe in enumerate(self._pipes) if i not in answers]
            ready = wait(pending, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = [p.name for i, p in enumerate(self._processes) if i not in answers]
                self._fail(f"{', '.join(missing)} did not answer {word!r} within {self._timeout_s:g} s")
            for index in (i for i, pipe in enumerate(self._pipes) if pipe in ready):
                answers[index] = self._receive(index, word)
        return [answers[i] for i in range(len(self._pipes))]

    def _receive(self, index: int, word: str) -> Any:
        name = self._processes[index].name
        try:
            worked, answer = pickle.loads(self._pipes[index].recv_bytes())
        except EOFError:
            self._processes[index].join(5.0)
            self._fail(f"{name} died with exit code {self._processes[index].exitcode} while answering {word!r}")
        if not worked:
            self._fail(f"{name} failed while answering {word!r}:\n{answer}")
        return answer

    def _fail(self, what: str) -> NoReturn:
        self.close(patience_s=0.0)
        raise CrewError(f"asking {len(self._pipes)} processes: {what}")

    def close(self, *, patience_s: float = 20.0) -> None:
        """End the processes: they leave when their pipe closes, or are killed."""
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + patience_s
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close(patience_s=20.0 if error is None else 0.0)


def _serve(pipe: Connection, member: Callable[..., Member], arguments: tuple[Any, ...]) -> None:
    """The life of a process: make the member at the first question, answer until the pipe closes."""
    made: Member | None = None
    while True:
        try:
            word, asked = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        try:
            made = member(*arguments) if made is None else made
            answer = (True, made.answer(word, *asked))
        except Exception:  # noqa: BLE001 - whatever it is, the process that asked has to hear of it
            answer = (False, traceback.format_exc())
        try:
            pipe.send_bytes(pickle.dumps(answer))
        except BrokenPipeError:
            return

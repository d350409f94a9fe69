"""How a reward function is run: on the calling thread, in a worker thread with a time limit, or on a private event loop.

This file knows threads and event loops. It does not know what a reward is.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, final

GRACE_S = 1.0
"""How much longer than its limit a coroutine may take to give up before its loop counts as blocked."""


class TimeLimitError(Exception):
    """A call that did not come back within its time limit; never raised by the code that was called."""


def call_within(call: Callable[[], Any], timeout_s: float) -> Any:
    """What a call returns, or `TimeLimitError`: it runs in a daemon thread, which is left behind if it never returns.

    Python cannot stop a thread: after a timeout it goes on until the call returns, but holds up neither the caller
    nor the interpreter's exit. Waiting for it can be interrupted from the keyboard.

    >>> call_within(lambda: 1 + 1, timeout_s=5)
    2
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            answers.put((context.run(call), None))
        except BaseException as error:  # noqa: BLE001 - handed over whatever it is: the calling thread raises it
            answers.put((None, error))

    threading.Thread(target=work, name="reward function", daemon=True).start()
    try:
        value, error = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeLimitError from None
    if error is not None:
        raise error
    return value


@final
class LoopThread:
    """An event loop in a thread of its own, so that coroutines run even where a loop is running already (a notebook).

    One loop serves all calls, since asynchronous clients are bound to the loop that they first ran on.

    >>> async def two(): return 2
    >>> loop = LoopThread()
    >>> loop.run([two, two], timeout_s=None)
    [2, 2]
    >>> loop.close()
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(self._loop,), name="asynchronous reward functions", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _stop, self._loop, thread)

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing can be submitted any more."""
        return not self._stop.alive

    def run(self, functions: Sequence[Callable[[], Coroutine[Any, Any, Any]]], timeout_s: float | None) -> list[Any]:
        """What each coroutine function returns, or the error it raised, all running at once.

        At the time limit a coroutine is cancelled and its error is `TimeLimitError`. One that blocks the loop, so that it
        cannot be cancelled, makes that the error of all; the loop is closed then.
        """
        future = asyncio.run_coroutine_threadsafe(_together(functions, timeout_s), self._loop)
        try:
            return future.result(None if timeout_s is None else timeout_s + GRACE_S)
        except TimeoutError:
            self.close()
            return [TimeLimitError() for _ in functions]
        except BaseException:
            future.cancel()  # an interrupt from the keyboard must not leave coroutines running
            raise

    def close(self) -> None:
        """Stop the loop and its thread; safe to call twice."""
        self._stop()


async def _together(functions: Sequence[Callable[[], Coroutine[Any, Any, Any]]], timeout_s: float | None) -> list[Any]:
    return await asyncio.gather(*(_bounded(f, timeout_s) for f in functions), return_exceptions=True)


async def _bounded(function: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float | None) -> Any:
    # not asyncio.wait_for: its TimeoutError could not be told from one that the coroutine raises itself
    task = asyncio.ensure_future(function())
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise TimeLimitError
    return task.result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """The thread's life: run until told to stop, let what is unfinished clean up, close the loop."""
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
        loop.close()


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=GRACE_S)  # a blocked loop stops when it can; its thread is a daemon and dies with the process

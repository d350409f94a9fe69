"""Asynchronous functions run together, inside a running loop too, and give up at their time limit."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from reward_fakes import GROUP, PROMPT, right, slow_right

from rollplex import reward_calls
from rollplex.rewards import RewardError, Scorer


class Judge:
    """An asynchronous function as an object."""

    async def __call__(self, completions: list[Any], **_: Any) -> list[float]:
        return [0.5] * len(completions)


def test_async_functions_run_with_sync_ones() -> None:
    scorer = Scorer([slow_right, right, Judge()])
    scored = scorer.score(GROUP, PROMPT)
    assert list(scored.by_function) == ["slow_right", "right", "Judge"]
    assert scored.values.tolist() == [2.5, 0.5, 0.5]
    scorer.close()


def test_async_functions_run_inside_a_running_loop() -> None:
    scorer = Scorer([slow_right])

    async def cell() -> list[float]:
        return scorer.score(GROUP, PROMPT).values.tolist()

    assert asyncio.run(cell()) == [1.0, 0.0, 0.0]
    scorer.close()


def test_async_functions_share_one_loop_across_groups_and_run_at_once() -> None:
    loops, meeting, both = [], [], asyncio.Event()

    def meets(name: str) -> Callable[..., Any]:
        async def function(completions: list[Any], **_: Any) -> list[float]:
            loops.append(asyncio.get_running_loop())
            meeting.append(name)
            if set(meeting) == {"a", "b"}:
                both.set()
            await both.wait()  # each waits for the other: one after the other would never end
            return [0.0] * 3

        return function

    scorer = Scorer([meets("a"), meets("b")], timeout_s=10.0)
    scorer.score(GROUP, PROMPT)
    scorer.score(GROUP, PROMPT)
    assert len(set(loops)) == 1
    scorer.close()


def test_an_async_function_is_cancelled_at_the_limit() -> None:
    cancelled = threading.Event()

    async def hanging(completions: list[Any], **_: Any) -> list[float]:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return [0.0] * 3

    scorer = Scorer([hanging, slow_right], timeout_s=0.05)
    with pytest.raises(RewardError, match=r"'hanging'.*timeout_s=0\.05") as caught:
        scorer.score(GROUP, PROMPT)
    assert cancelled.wait(5)
    assert list(caught.value.results) == ["slow_right"]
    scorer.close()


def test_an_async_function_that_blocks_its_loop_times_out_and_a_new_loop_serves_the_next_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_calls, "GRACE_S", 0.02)
    release, calls = threading.Event(), []

    async def blocking(completions: list[Any], **_: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 1:
            release.wait(20)
        return [1.0] * 3

    scorer = Scorer([blocking], timeout_s=0.02)
    with pytest.raises(RewardError, match=r"'blocking'.*timeout_s"):
        scorer.score(GROUP, PROMPT)
    assert scorer.score(GROUP, PROMPT).mean() == 1.0
    release.set()
    scorer.close()


def test_a_function_that_forgets_to_await_is_told_so() -> None:
    with pytest.raises(RewardError, match="coroutine; define the function itself with `async def`"):
        Scorer([lambda completions, answer: slow_right(completions=completions, answer=answer)]).score(GROUP, PROMPT)

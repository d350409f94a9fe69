"""A reward function that fails or hangs is named with its row, and nothing is ever scored 0 in its place."""

import asyncio
import signal
import threading
import time
import traceback
from typing import Any

import pytest
from reward_fakes import GROUP, PROMPT, prompt_of, returning, right

from rollplex.rewards import RewardError, Scorer


def failing(completions: list[Any], **_: Any) -> list[float]:
    raise KeyError("boom")


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_an_exception_names_row_function_and_texts_and_keeps_the_others_results(timeout_s: float | None) -> None:
    functions = [right, failing, returning([1.0] * 3, "after")]
    with pytest.raises(RewardError, match="boom") as caught:
        Scorer(functions, timeout_s=timeout_s).score(GROUP, prompt_of(answer="2", id="row 5"))
    error = caught.value
    assert isinstance(error.__cause__, KeyError)
    assert traceback.extract_tb(error.__cause__.__traceback__)[-1].name == "failing"
    for said in ("prompt 3 (id 'row 5')", "'failing'", "What is 1 + 1?", "First response: '2'"):
        assert said in str(error)
    assert (error.function, error.prompt, list(error.results)) == ("failing", 3, ["right", "after"])
    assert error.results["right"].tolist() == [1.0, 0.0, 0.0]


def test_every_failure_of_a_group_is_told() -> None:
    with pytest.raises(RewardError) as caught:
        Scorer([failing, returning(1.0, "scalar")]).score(GROUP, PROMPT)
    assert "'scalar' failed too" in caught.value.__notes__[0]


def test_a_hanging_function_times_out_and_can_be_scored_again() -> None:
    release, calls = threading.Event(), []

    def hanging(completions: list[Any], **_: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 1:
            release.wait(20)
        return [1.0] * 3

    scorer = Scorer([hanging, returning([0.0] * 3, "other")], timeout_s=0.05)
    with pytest.raises(RewardError, match=r"prompt 3.*'hanging'.*timeout_s=0.05") as caught:
        scorer.score(GROUP, PROMPT)
    assert list(caught.value.results) == ["other"]
    release.set()
    assert scorer.score(GROUP, PROMPT).mean() == 1.0


def test_a_functions_own_timeout_error_is_not_taken_for_ours() -> None:
    def impatient(completions: list[Any], **_: Any) -> list[float]:
        raise TimeoutError("the judge did not answer")

    async def impatient_too(completions: list[Any], **_: Any) -> list[float]:
        raise TimeoutError("the judge did not answer")

    for function in (impatient, impatient_too):
        scorer = Scorer([function], timeout_s=5.0)
        with pytest.raises(RewardError, match="the judge did not answer"):
            scorer.score(GROUP, PROMPT)
        scorer.close()


@pytest.mark.parametrize("kind", ["calling thread", "worker thread", "async"])
def test_an_interrupt_from_the_keyboard_ends_the_wait(kind: str) -> None:
    release = threading.Event()
    started = threading.Event()

    def waiting(completions: list[Any], **_: Any) -> list[float]:
        started.set()
        release.wait(20)
        return [0.0] * 3

    async def waiting_too(completions: list[Any], **_: Any) -> list[float]:
        started.set()
        await asyncio.sleep(20)
        return [0.0] * 3

    def interrupt() -> None:
        started.wait(20)
        time.sleep(0.02)  # until the main thread waits
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    scorer = Scorer([waiting_too if kind == "async" else waiting], timeout_s=20.0 if kind == "worker thread" else None)
    killer = threading.Thread(target=interrupt)
    killer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        scorer.score(GROUP, PROMPT)
    assert time.monotonic() - begin < 10
    release.set()
    killer.join()
    scorer.close()

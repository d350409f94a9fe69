"""Calling reward functions the way TRL does, and what happens when one of them misbehaves.

This file knows how scores come about. It does not know what they are used for: see `advantages`.

Where it differs from TRL: a function that takes no ``**kwargs`` gets only what it names; NaN and infinity are errors;
a group's scores are float64; a response without tokens is never scored.

Shapes: G responses in a group.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, final

import torch

from rollplex.prompts import Prompt
from rollplex.reward_calls import LoopThread, TimeLimitError, call_within
from rollplex.reward_signature import RESERVED, Signature, callable_name
from rollplex.reward_values import as_scores
from rollplex.step import RewardGroup, RolloutGroup
from rollplex.task import RewardFunction

HEAD = 80  # characters of a prompt or a response shown in an error


class RewardError(RuntimeError):
    """A reward function failed on a group; nothing was scored 0 in its place."""

    def __init__(self, message: str, *, function: str, prompt: int, results: Mapping[str, torch.Tensor]) -> None:
        super().__init__(message)
        self.function = function
        """Name of the function that failed."""
        self.prompt = prompt
        """Index of the prompt in its batch."""
        self.results = results
        """The ``[G]`` scores of the functions that did not fail."""


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """What a reward function gets as ``trainer_state``: the part of TRL's that reward shaping uses."""

    global_step: int
    """Index of the training step."""


@dataclass(kw_only=True, eq=False)
class RewardLog:
    """What reward functions logged of their own accord, through ``log_metric`` and ``log_extra``."""

    metrics: dict[str, list[float]] = field(default_factory=dict)
    """Name -> values, in the order logged; TRL averages them over a step."""
    extras: dict[str, list[Any]] = field(default_factory=dict)
    """Column -> one value for each response, in the order logged."""

    def metric(self, name: str, value: float) -> None:
        """Keep one value of a metric; given to functions as ``log_metric``."""
        self.metrics.setdefault(name, []).append(value)

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """Keep a column of values, one for each response; given to functions as ``log_extra``."""
        self.extras.setdefault(column, []).extend(values)

    def take(self) -> RewardLog:
        """Everything logged so far, as a log of its own; this one starts anew."""
        taken = RewardLog(metrics=self.metrics, extras=self.extras)
        self.metrics, self.extras = {}, {}
        return taken


@final
class Scorer:
    """Scores a group of responses with one or more reward functions, called as TRL calls them.

    Without a time limit a function runs on the calling thread. With one it runs in a worker thread, which cannot be
    stopped: after a timeout it goes on in the background until the function returns. Code that uses ``signal.alarm``
    works only on the main thread: it is refused elsewhere if it is the function's own, warned of if it is in a library.

    >>> def short(completions, **columns): return [len(text) < 5 for text in completions]
    >>> Scorer([short])
    Scorer(short)
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        weights: Sequence[float] | None = None,
        timeout_s: float | None = None,
        nan_is_none: bool = False,
    ) -> None:
        """Functions with their weights (1 each unless given), a time limit for each call, and what NaN means."""
        if not functions:
            raise ValueError("making a scorer of no reward functions: at least one is needed")
        weights = [1.0] * len(functions) if weights is None else list(weights)
        if len(weights) != len(functions):
            raise ValueError(
                f"weights: got {len(weights)} for {len(functions)} reward functions; give one for each, in order"
            )
        if not all(isinstance(w, Real) and math.isfinite(w) for w in weights):
            raise ValueError(f"weights={weights}: each must be a finite number")
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s}: must be above 0, or None for no limit")
        names = _distinct([callable_name(f) for f in functions])
        self._signatures = tuple(Signature.of(f, name=n) for f, n in zip(functions, names, strict=True))
        self._weights = torch.tensor([float(w) for w in weights], dtype=torch.float64)
        self._timeout_s = timeout_s
        self._nan_is_none = nan_is_none
        self._loop: LoopThread | None = None
        self._warned: set[str] = set()
        self.log = RewardLog()
        """What the functions logged themselves; whoever writes a step's metrics takes it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions, each distinct, in order."""
        return tuple(s.name for s in self._signatures)

    def check(self, prompt: Prompt) -> None:
        """Whether every function can be called on a prompt's row; an error names the column that is missing."""
        for signature in self._signatures:
            signature.keywords({**dict.fromkeys(RESERVED), **_columns(prompt.row, 1)})

    def score(self, group: RolloutGroup, prompt: Prompt, *, step: int = 0) -> RewardGroup:
        """The group's scores; `RewardError` if a function fails, with what the others returned."""
        offered = {
            "prompts": [_copied(prompt) for _ in range(group.size)],
            "completions": _completions(group, prompt),
            "completion_ids": [ids[:n].tolist() for ids, n in zip(group.tokens, group.lengths.tolist(), strict=True)],
            **_columns(prompt.row, group.size),
            "trainer_state": TrainerState(global_step=step),
            "log_extra": self.log.extra,
            "log_metric": self.log.metric,
        }
        results: dict[str, torch.Tensor] = {}
        failures: dict[str, Exception] = {}
        for name, outcome in self._call_all(offered).items():
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                results[name] = as_scores(outcome, group.size, nan_is_none=self._nan_is_none)
            except Exception as error:  # noqa: BLE001 - raised below, with the other results
                failures[name] = error
        if failures:
            raise self._failed(failures, results, group, prompt)
        return self._weighted(results, group, prompt)

    def close(self) -> None:
        """Stop the event loop of asynchronous functions; safe to call twice, and scoring again starts a new one."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _call_all(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """Name -> what the function returned, or the error it raised: one failure must not cost the others' results."""
        for signature in self._signatures:
            self._refuse_alarms(signature)
        calls: dict[str, Callable[[], Any]] = {
            s.name: partial(s.function, **s.keywords(offered)) for s in self._signatures
        }
        together = [s.name for s in self._signatures if s.is_async]
        outcomes = {name: self._attempt(call) for name, call in calls.items() if name not in together}
        if together:
            if self._loop is None or self._loop.closed:
                self._loop = LoopThread()
            answers = self._loop.run([calls[name] for name in together], self._timeout_s)
            outcomes.update(zip(together, answers, strict=True))
        return {name: outcomes[name] for name in self.names}

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return call() if self._timeout_s is None else call_within(call, self._timeout_s)
        except Exception as error:  # noqa: BLE001 - raised by `score`, once all functions have been called
            return error

    def _refuse_alarms(self, signature: Signature) -> None:
        if self._timeout_s is None and threading.current_thread() is threading.main_thread() and not signature.is_async:
            return
        if signature.own_alarm:
            raise ValueError(
                f"reward function {signature.name!r} uses signal.alarm, which only the main thread may, and would run in "
                f"another one. Take the alarm out and set timeout_s, or keep it, with timeout_s=None on the main thread."
            )
        if signature.called_alarm is not None and signature.name not in self._warned:
            self._warned.add(signature.name)
            warnings.warn(
                f"reward function {signature.name!r} calls {signature.called_alarm}, which uses signal.alarm, off the main "
                f"thread, where alarms raise. If that is swallowed, every score is 0: switch that time limit off there.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _weighted(self, results: Mapping[str, torch.Tensor], group: RolloutGroup, prompt: Prompt) -> RewardGroup:
        empty = group.lengths.cpu() == 0  # an engine's failure, not an answer: it must not move the baseline
        by_function = {name: scores.masked_fill(empty, math.nan) for name, scores in results.items()}
        scores = torch.stack(list(by_function.values()), dim=1)
        values = (scores * self._weights).nansum(dim=1).masked_fill(scores.isnan().all(dim=1), math.nan)
        if values.isnan().all() and "unscored" not in self._warned:
            self._warned.add("unscored")
            warnings.warn(
                f"no reward function applied to any response of {_where(group, prompt)}: the group teaches nothing. "
                f"{_heads(group, prompt)} Said once; later ones are only counted.",
                RuntimeWarning,
                stacklevel=3,
            )
        return RewardGroup(prompt=group.prompt, values=values, by_function=by_function)

    def _failed(
        self,
        failures: Mapping[str, Exception],
        results: Mapping[str, torch.Tensor],
        group: RolloutGroup,
        prompt: Prompt,
    ) -> RewardError:
        name, cause = next(iter(failures.items()))
        text = (
            f"scoring {_where(group, prompt)} with reward function {name!r}: {self._reason(cause)}. {_heads(group, prompt)} "
            f"Fix the function and score again; results of {list(results)} are in this error's `results`."
        )
        error = RewardError(text, function=name, prompt=group.prompt, results=results)
        error.__cause__ = cause
        for other in list(failures)[1:]:
            error.add_note(f"reward function {other!r} failed too: {self._reason(failures[other])}")
        return error

    def _reason(self, error: Exception) -> str:
        if isinstance(error, TimeLimitError):
            return (
                f"no result after timeout_s={self._timeout_s}. A thread cannot be stopped: the call goes on in the "
                f"background until it returns"
            )
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ValueError) and "main thread" in str(error):
            reason += " (alarms and signals work only on the main thread: use timeout_s=None there)"
        return reason

    def __repr__(self) -> str:
        return f"Scorer({', '.join(self.names)})"


def _distinct(names: Sequence[str]) -> list[str]:
    """Two lambdas have one name; results need two: the second becomes ``<lambda>#2``."""
    return [n if names[:i].count(n) == 0 else f"{n}#{names[:i].count(n) + 1}" for i, n in enumerate(names)]


def _columns(row: Mapping[str, Any], num: int) -> dict[str, list[Any]]:
    clash = sorted(set(RESERVED) - {"completion_ids"} & row.keys())
    if clash:
        raise ValueError(
            f"the row has columns {clash}, but reward functions get something else by these names; rename them"
        )
    return {key: [value] * num for key, value in row.items() if key not in ("prompt", "completion", "completion_ids")}


def _copied(prompt: Prompt) -> Any:
    """The prompt as TRL hands it over: text, or messages, with images in place where the row has any."""
    given = prompt.row["prompt"]
    if isinstance(given, str):
        return given
    return [dict(m) for m in (prompt.messages if prompt.num_images or prompt.num_videos else given)]


def _completions(group: RolloutGroup, prompt: Prompt) -> list[Any]:
    if isinstance(prompt.row["prompt"], str):
        return list(group.texts)
    return [[{"role": "assistant", "content": text}] for text in group.texts]


def _where(group: RolloutGroup, prompt: Prompt) -> str:
    return f"prompt {group.prompt}" + (f" (id {prompt.row['id']!r})" if "id" in prompt.row else "")


def _heads(group: RolloutGroup, prompt: Prompt) -> str:
    last = prompt.messages[-1]["content"] if prompt.messages else prompt.row["prompt"]
    text = last if isinstance(last, str) else " ".join(b["text"] for b in last if b["type"] == "text")
    return f"Prompt: {text[:HEAD]!r}. First response: {group.texts[0][:HEAD]!r}."

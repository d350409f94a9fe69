"""Reward functions written for verl or EasyR1, turned into the form that TRL and this package call.

Both score one response at a time and return a number or a dictionary of them. This file knows those two forms. It does
not check what they return: `Scorer` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rollplex.reward_signature import callable_name
from rollplex.task import RewardFunction

HEAD = 80  # characters of a response shown in an error


def from_verl(compute_score: Callable[..., Any], *, name: str | None = None) -> RewardFunction:
    """A reward function made of verl's ``compute_score(data_source, solution_str, ground_truth, extra_info)``.

    It reads the row's columns ``data_source``, ``reward_model`` (a mapping with ``ground_truth``) and ``extra_info``,
    as verl does. The other entries of a returned dictionary are logged, one column each.

    >>> def compute_score(data_source, solution_str, ground_truth, extra_info=None): return solution_str == ground_truth
    >>> reward = from_verl(compute_score)
    >>> reward(completions=["4", "5"], reward_model=[{"ground_truth": "4"}] * 2)
    [True, False]
    """
    name = callable_name(compute_score) if name is None else name
    _refuse_async(compute_score, name)

    def score(
        completions: Sequence[Any],
        reward_model: Sequence[Mapping[str, Any]],
        data_source: Sequence[Any] | None = None,
        extra_info: Sequence[Any] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[Any]:
        returned = [
            _one(
                i,
                text,
                lambda text=text, i=i: compute_score(
                    data_source=None if data_source is None else data_source[i],
                    solution_str=text,
                    ground_truth=reward_model[i]["ground_truth"],
                    extra_info={} if extra_info is None else dict(extra_info[i]),
                ),
            )
            for i, text in enumerate(map(_text, completions))
        ]
        return _picked(returned, "score", name, log_extra)

    return _named(score, name)


def from_easyr1(
    compute_score: Callable[..., Any],
    *,
    kind: Literal["sequential", "batch"] = "sequential",
    answer: str = "answer",
    name: str | None = None,
) -> RewardFunction:
    """A reward function made of EasyR1's ``compute_score({"response", "response_length", "ground_truth"})``.

    ``kind`` is the module's ``REWARD_TYPE``: whether it takes one such dictionary or a list of them. ``answer`` is the
    column with the ground truth. ``overall`` is the score; the other entries are logged, one column each.

    >>> def compute_score(reward_input): return {"overall": float(reward_input["response"] == reward_input["ground_truth"])}
    >>> from_easyr1(compute_score)(completions=["4", "5"], completion_ids=[[4], [5]], answer=["4", "4"])
    [1.0, 0.0]
    """
    name = callable_name(compute_score) if name is None else name
    _refuse_async(compute_score, name)
    if kind not in ("sequential", "batch"):
        raise ValueError(f"kind={kind!r}: must be 'sequential' or 'batch', the REWARD_TYPE of the function's module")

    def score(
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Any,
    ) -> list[Any]:
        if answer not in columns:
            raise ValueError(f"reward function {name!r} needs the column {answer!r}; the row has {sorted(columns)}")
        inputs = [
            {"response": _text(completion), "response_length": len(ids), "ground_truth": truth}
            for completion, ids, truth in zip(completions, completion_ids, columns[answer], strict=True)
        ]
        if kind == "batch":
            return _picked(compute_score(inputs), "overall", name, log_extra)
        returned = [
            _one(i, given["response"], lambda given=given: compute_score(given)) for i, given in enumerate(inputs)
        ]
        return _picked(returned, "overall", name, log_extra)

    return _named(score, name)


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def _one(index: int, text: str, call: Callable[[], Any]) -> Any:
    """One response's call; an error learns which response it was."""
    try:
        return call()
    except Exception as error:
        error.add_note(f"while scoring response {index}: {text[:HEAD]!r}")
        raise


def _picked(
    returned: Sequence[Any], key: str, name: str, log_extra: Callable[[str, list[Any]], None] | None
) -> list[Any]:
    """The entry of each result that is the score; the others go to the log, None where a response lacks one."""
    mappings = [r for r in returned if isinstance(r, Mapping)]
    for i, result in enumerate(returned):
        if isinstance(result, Mapping) and key not in result:
            raise ValueError(f"reward function {name!r}, response {i}: its result has {sorted(result)}, but no {key!r}")
    if log_extra is not None:
        for column in dict.fromkeys(c for m in mappings for c in m if c != key):
            log_extra(f"{name}/{column}", [r.get(column) if isinstance(r, Mapping) else None for r in returned])
    return [r[key] if isinstance(r, Mapping) else r for r in returned]


def _refuse_async(function: Callable[..., Any], name: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise ValueError(
            f"adapting {name!r}: it is `async def`, which verl and EasyR1 functions are not; call it from a `def`"
        )


def _named(function: Callable[..., Any], name: str) -> RewardFunction:
    function.__name__ = function.__qualname__ = name
    return function

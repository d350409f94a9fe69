"""What a reward function can be called with, found out before it is called.

This file knows signatures and code objects. It does not call the function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from rollplex.task import RewardFunction

EXPECTED = "f(prompts, completions, completion_ids, <columns of the row>, **kwargs) -> list of a number or None for each completion"
RESPONSES = ("prompts", "completions", "completion_ids")
RESERVED = (*RESPONSES, "trainer_state", "log_extra", "log_metric")
ALARMS = {"alarm", "setitimer"}
MAX_VISITED = 500  # functions looked at when searching for an alarm; libraries reach far


@dataclass(frozen=True, kw_only=True, eq=False)
class Signature:
    """A reward function with what its parameters say about it."""

    function: RewardFunction
    """The function itself."""
    name: str
    """What it is called in results, logs and errors."""
    accepts: frozenset[str] | None
    """Keywords that it takes; None where it takes any (``**kwargs``)."""
    requires: frozenset[str]
    """Keywords that it cannot be called without."""
    is_async: bool
    """Whether calling it gives a coroutine."""
    own_alarm: bool
    """Whether its own code sets ``signal.alarm`` or an interval timer, which only the main thread may."""
    called_alarm: str | None
    """The function it (indirectly) calls that sets one, if any is found."""

    @classmethod
    def of(cls, function: RewardFunction, *, name: str | None = None) -> Signature:
        """Inspect a function; one that cannot be called with keywords is refused.

        >>> def length(completions, **columns): return [float(len(text)) for text in completions]
        >>> Signature.of(length).name
        'length'
        """
        name = callable_name(function) if name is None else name
        parameters = _parameters(function, name).values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        accepts = None if any(p.kind is p.VAR_KEYWORD for p in parameters) else frozenset(p.name for p in named)
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
        if positional:
            raise ValueError(f"reward function {name!r}: {positional} cannot be given by keyword. Expected {EXPECTED}.")
        if accepts is not None and accepts.isdisjoint(RESPONSES):
            raise ValueError(
                f"reward function {name!r}: it takes {sorted(accepts)}, none of {list(RESPONSES)}. Expected {EXPECTED}. "
                f"For a `compute_score` of verl or EasyR1 use from_verl or from_easyr1 of rollplex.reward_adapters."
            )
        own, called = _alarms(function)
        return cls(
            function=function,
            name=name,
            accepts=accepts,
            requires=frozenset(p.name for p in named if p.default is p.empty),
            is_async=any(inspect.iscoroutinefunction(f) for f in _unwrapped(function)),
            own_alarm=own,
            called_alarm=called,
        )

    def keywords(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        """The offered keywords that it takes; a required one that is missing is an error."""
        missing = sorted(self.requires - offered.keys())
        if missing:
            columns = sorted(offered.keys() - set(RESERVED))
            raise ValueError(
                f"reward function {self.name!r} needs {missing}, which the row does not have. Its other columns are "
                f"{columns}. Add the column to the rows, or give the parameter a default."
            )
        return {k: v for k, v in offered.items() if self.accepts is None or k in self.accepts}


def callable_name(function: Callable[..., Any]) -> str:
    """The name a person gave a function; the class's name for an object that can be called.

    >>> callable_name(functools.partial(len))
    'len'
    """
    while isinstance(function, functools.partial):
        function = function.func
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def _parameters(function: RewardFunction, name: str) -> Mapping[str, inspect.Parameter]:
    if isinstance(function, torch.nn.Module):
        raise ValueError(f"reward function {name!r} is a model, not a function. Wrap it: expected {EXPECTED}.")
    if not callable(function) or isinstance(function, type):
        raise ValueError(
            f"reward function {function!r} is a {type(function).__name__}, not a function. Expected {EXPECTED}."
        )
    try:
        return inspect.signature(function).parameters
    except ValueError as error:
        raise ValueError(
            f"reward function {name!r} does not tell its parameters. Wrap it in `def`: {EXPECTED}."
        ) from error


def _unwrapped(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function, and what is inside its partials, or its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return [function] if inspect.isroutine(function) else [function, type(function).__call__]


def _alarms(function: RewardFunction) -> tuple[bool, str | None]:
    """Whether its own code sets an alarm, and which function that it calls does.

    Off the main thread such code raises, and libraries are known to swallow that and score 0: hence the search.
    """
    own = [f for f in map(_plain, _unwrapped(function)) if f is not None]
    if any(_sets_alarm(code) for f in own for code in _codes(f.__code__)):
        return True, None
    seen, waiting = set(own), list(own)
    while waiting and len(seen) < MAX_VISITED:
        for reached in _reached(waiting.pop(0)):
            if reached in seen:
                continue
            if any(_sets_alarm(code) for code in _codes(reached.__code__)):
                return False, f"{reached.__module__}.{reached.__qualname__}"
            seen.add(reached)
            waiting.append(reached)
    return False, None


def _reached(function: FunctionType) -> list[FunctionType]:
    """Functions that a function's code names: its closure's, its module's, and those of modules it names."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    held = list(inspect.getclosurevars(function).nonlocals.values())
    held += [function.__globals__[name] for name in names if name in function.__globals__]
    held += [
        vars(value)[name] for value in held if isinstance(value, ModuleType) for name in names if name in vars(value)
    ]
    held += [method for value in held if isinstance(value, type) for method in vars(value).values()]
    return [f for f in map(_plain, held) if f is not None]


def _plain(value: Any) -> FunctionType | None:
    while isinstance(value, functools.partial):
        value = value.func
    value = value.__func__ if isinstance(value, MethodType) else value
    return value if isinstance(value, FunctionType) else None


def _codes(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _sets_alarm(code: CodeType) -> bool:
    return "signal" in code.co_names and not ALARMS.isdisjoint(code.co_names)

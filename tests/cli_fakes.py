"""Commands that the tests of the command line call: each does one thing."""

from typing import NoReturn


def echo(**arguments: object) -> dict[str, object]:
    print("a table")
    return {"arguments": arguments}


def long() -> dict[str, object]:
    print("a table that is longer than any buffer\n" * 10_000)
    return {}


def breaks() -> NoReturn:
    raise BrokenPipeError(32, "Broken pipe")  # a child's, say


def fails() -> dict[str, object]:
    return {"passed": False}


def interrupted() -> NoReturn:
    raise KeyboardInterrupt


def broken() -> NoReturn:
    raise ValueError("a bug, since no code of the package raised it on purpose")


def refuses() -> dict[str, object]:
    from rollplex.trace import Trace

    return {"seconds": Trace().step_s(3)}  # the package refuses: the trace has no such step

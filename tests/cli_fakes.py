"""Commands that the tests of the command line call: each does one thing."""

from typing import NoReturn


def echo(**arguments: object) -> dict[str, object]:
    print("a table")
    return {"arguments": arguments}


def fails() -> dict[str, object]:
    return {"passed": False}


def interrupted() -> NoReturn:
    raise KeyboardInterrupt


def broken() -> NoReturn:
    raise ValueError("a bug, since no code of the package raised it on purpose")


def refuses() -> dict[str, object]:
    from rollplex.trace import Trace

    return {"seconds": Trace().step_s(3)}  # the package refuses: the trace has no such step

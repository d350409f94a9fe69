"""The JSON that every command writes: the command's own result in one common envelope.

It knows how to make a result plain JSON and where to put it. It does not know what the keys mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from numbers import Integral, Real
from pathlib import Path
from typing import TypeAlias

from rollplex.machine import Machine

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


def envelope(command: str, result: Mapping[str, object], *, seed: int = 0) -> dict[str, Json]:
    """A result with the keys that every file has: command, version, machine, seed. The result's own keys win.

    >>> envelope("verify", {"passed": True})["passed"]
    True
    """
    import rollplex

    common = {"command": command, "version": rollplex.__version__, "machine": asdict(Machine.here()), "seed": seed}
    return {name: plain(value, where=name) for name, value in {**common, **result}.items()}


def plain(value: object, *, where: str = "value") -> Json:
    """A value as JSON can say it: numbers of any library, mappings, sequences, paths; NaN and infinity become null.

    >>> plain({"ratios": (1, float("nan")), "out": Path("a/b")})
    {'ratios': [1, None], 'out': 'a/b'}
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item, where=f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(f"writing JSON: {where} is a {type(value).__name__}; give a number, text, path, list or mapping")


def expect_writable(path: Path) -> None:
    """Refuse a place that cannot be written: before minutes of work, not after."""
    doing = f"writing JSON to {path}"
    try:
        if path.is_dir() or not path.resolve().parent.is_dir():
            found = "it is a folder" if path.is_dir() else f"there is no folder {path.resolve().parent}"
            raise ValueError(f"{doing}: {found}; name a file in a folder that exists")
        if not _is_special(path):  # what a device or a pipe takes shows when it is written
            _partial(path).touch()
            _partial(path).unlink()
    except OSError as error:
        raise ValueError(f"{doing}: {error.strerror}; name a file in a folder that you may write to") from None


def write(path: Path, document: Mapping[str, Json]) -> None:
    """Write a document; a reader never sees half a file. A device or a pipe is written to, and never replaced."""
    if _is_special(path):
        path.write_text(dumps(document))
        return
    partial = _partial(path)
    partial.write_text(dumps(document))
    partial.replace(path.resolve())


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _partial(path: Path) -> Path:
    """Beside the file itself, wherever a link to it leads."""
    there = path.resolve()
    return there.with_name(f".{there.name}.partial")


def dumps(document: Mapping[str, Json]) -> str:
    """A document as text, indented, ending in a newline."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"

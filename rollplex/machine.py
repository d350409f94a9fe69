"""What the machine is: cores, memory, GPU. It measures nothing and knows nothing of what runs on it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that a result belongs to."""

    cores: int
    """CPU cores that this process may use."""
    memory_bytes: int
    """Main memory that this process may use: the machine's, or its container's limit where that is lower."""
    device: str | None
    """Name of the first CUDA device, or None."""

    @classmethod
    def here(cls) -> Machine:
        """This machine.

        >>> Machine.here().cores >= 1
        True
        """
        return cls(cores=_cores(), memory_bytes=_memory_bytes(), device=_device())


def _cores() -> int:
    # The affinity mask, because cpu_count also counts cores that a container may not use.
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _memory_bytes() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return physical if text == "max" else min(physical, int(text))


def _device() -> str | None:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def device_name(device: torch.device) -> str:
    """What times measured on a device belong to: ``"cpu (2 cores)"``, or the GPU's own name."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({_cores()} cores)"

"""Where objects are, and when: contracts of residency, footprints, and the memory behind them.

A public name's module is imported when the name is first asked for: footprints need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollplex.memory.arena import Arena as Arena
    from rollplex.memory.arena import OutOfDeviceMemory as OutOfDeviceMemory
    from rollplex.memory.contracts import CONTRACTS as CONTRACTS
    from rollplex.memory.explanation import explain as explain
    from rollplex.memory.ledger import Ledger as Ledger
    from rollplex.memory.lifetime import Lifetimes as Lifetimes
    from rollplex.memory.lifetime import ResidencyError as ResidencyError
    from rollplex.memory.lifetime import lifetimes as lifetimes
    from rollplex.memory.memory import Memory as Memory
    from rollplex.memory.pool import HostPool as HostPool

_HOME = {
    "Arena": "arena",
    "CONTRACTS": "contracts",
    "HostPool": "pool",
    "Ledger": "ledger",
    "Lifetimes": "lifetime",
    "Memory": "memory",
    "OutOfDeviceMemory": "arena",
    "ResidencyError": "lifetime",
    "explain": "explanation",
    "lifetimes": "lifetime",
}
"""Public name -> the module of this folder that defines it."""

__all__ = [
    "CONTRACTS",
    "Arena",
    "HostPool",
    "Ledger",
    "Lifetimes",
    "Memory",
    "OutOfDeviceMemory",
    "ResidencyError",
    "explain",
    "lifetimes",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"rollplex.memory.{_HOME[name]}"), name)
    raise AttributeError(f"module 'rollplex.memory' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")

"""The version of the weights in a region, written beside them where every process that maps the region reads it.

A trainer opens it before the first weight changes and closes it after the last; in between, and at any other version
than the one expected, a reader refuses. It does not know whose weights they are.
"""

from __future__ import annotations

import torch

from rollplex.policy import StaleError

NBYTES = 8


class Stamp:
    """A version in eight bytes of shared memory.

    >>> stamp = Stamp(torch.zeros(8, dtype=torch.uint8))
    >>> stamp.open()
    >>> stamp.being_written
    True
    >>> stamp.close(1)
    >>> stamp.version, stamp.being_written
    (1, False)
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self._value = memory[:NBYTES].view(torch.int64)

    @property
    def version(self) -> int:
        """The version that the region has, or had before the writing that goes on."""
        value = int(self._value)
        return value if value >= 0 else -value - 1

    @property
    def being_written(self) -> bool:
        """Whether an update has begun and is not complete: a mix of two versions."""
        return int(self._value) < 0

    def open(self) -> None:
        """Say that the weights are about to change."""
        self._value.fill_(-self.version - 1)

    def close(self, version: int) -> None:
        """Say that all weights are of a version."""
        self._value.fill_(version)

    def expect(self, version: int) -> None:
        """Refuse weights of another version, or of two."""
        if self.being_written:
            raise StaleError(
                f"reading weights of version {version}: an update of version {self.version} is being written. "
                "Wait until the trainer has published it."
            )
        if self.version != version:
            raise StaleError(
                f"reading weights of version {version}: the region has version {self.version}. "
                "Publish after every update, before the next rollout."
            )

    def __repr__(self) -> str:
        return f"Stamp(version {self.version}{', being written' if self.being_written else ''})"

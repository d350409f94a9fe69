"""Buffers of an update under way: where chunks are on the device between the host and the host.

It knows which bytes belong to which chunk. It does not know what is done to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollplex.chunks import Chunk
from rollplex.lanes import Lanes


class Flight:
    """One update under way: buffers on the device for up to three chunks, used in turn.

    A buffer has a chunk's state, and its gradients behind it where those were moved out.
    """

    def __init__(
        self, staging: torch.Tensor, plan: Sequence[Chunk], num_rows: int, state: torch.dtype, gradient: torch.dtype
    ) -> None:
        self.staging = staging
        self.lanes = Lanes(staging.device)
        self._plan, self._num_rows, self._state, self._gradient = plan, num_rows, state, gradient
        self._buffers = staging.chunk(min(3, len(plan)))

    @staticmethod
    def nbytes(plan: Sequence[Chunk], per_element: int) -> int:
        """Bytes of the buffers."""
        return min(3, len(plan)) * max(chunk.num for chunk in plan) * per_element

    def chunk(self, place: int) -> torch.Tensor:
        """State of a chunk on the device, ``[rows, elements]``."""
        num = self._plan[place].num
        nbytes = self._num_rows * num * self._state.itemsize
        return self._buffer(place)[:nbytes].view(self._state).view(self._num_rows, num)

    def gradients(self, place: int) -> torch.Tensor:
        """Its gradients, ``[elements]``."""
        num = self._plan[place].num
        start = self._num_rows * num * self._state.itemsize
        return self._buffer(place)[start : start + num * self._gradient.itemsize].view(self._gradient)

    def _buffer(self, place: int) -> torch.Tensor:
        return self._buffers[place % len(self._buffers)]

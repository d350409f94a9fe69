"""State of an optimizer in host memory: rows as long as all weights together, cut into chunks that each lie in one piece.

It knows where every element is. It does not know what the rows mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollplex.chunks import Chunk
from rollplex.memory.pool import ALIGNMENT, HostPool, Slot


class HostState:
    """A few rows over all elements of a list of tensors, in slots of a pool; zeros at first.

    >>> from rollplex.chunks import chunks
    >>> state = HostState(chunks([20, 30], 32), num_rows=2, dtype=torch.float32)
    >>> state.scatter(1, [torch.ones(20), torch.ones(30)])
    >>> state.chunk(0).sum(1)
    tensor([ 0., 32.])
    """

    def __init__(
        self,
        plan: Sequence[Chunk],
        *,
        num_rows: int,
        dtype: torch.dtype,
        pool: HostPool | None = None,
        pinned: bool = False,
        owner: str = "policy.optimizer",
    ) -> None:
        self._slots: list[Slot] = []
        pool = HostPool(_nbytes(plan, num_rows, dtype), pinned=pinned) if pool is None else pool
        self.pool = pool
        self.plan = plan
        self.num_rows = num_rows
        self.dtype = dtype
        try:
            for chunk in plan:
                self._slots.append(pool.take(owner, num_rows * chunk.num * dtype.itemsize))
        except Exception:
            self.free()
            raise
        for place in range(len(plan)):
            self.chunk(place).zero_()

    def chunk(self, place: int) -> torch.Tensor:
        """``[rows, elements]`` of one chunk."""
        return self._slots[place].tensor((self.num_rows, self.plan[place].num), self.dtype)

    def gathered(self, row: int, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A row in the forms of the tensors, as copies."""
        whole = [torch.empty_like(tensor, dtype=self.dtype, device="cpu", requires_grad=False) for tensor in like]
        for place, chunk in enumerate(self.plan):
            for piece in chunk.pieces:
                piece.of(whole).copy_(piece.within(self.chunk(place)[row]))
        return whole

    def scatter(self, row: int, whole: Sequence[torch.Tensor]) -> None:
        """Write a row from tensors that lie in storage as those of the plan do; the way back from `gathered`."""
        for place in range(len(self.plan)):
            self.fill(place, row, whole)

    def fill(self, place: int, row: int, whole: Sequence[torch.Tensor]) -> None:
        """Write one chunk of a row."""
        for piece in self.plan[place].pieces:
            piece.within(self.chunk(place)[row]).copy_(piece.of(whole), non_blocking=True)

    def copy_(self, other: HostState) -> HostState:
        """Take over what another state of the same plan holds."""
        for place in range(len(self.plan)):
            self.chunk(place).copy_(other.chunk(place))
        return self

    def __del__(self) -> None:
        self.free()  # a shared pool outlives the optimizers of one run

    def free(self) -> None:
        """Give the slots back."""
        for slot in self._slots:
            slot.free()
        self._slots.clear()


def _nbytes(plan: Sequence[Chunk], num_rows: int, dtype: torch.dtype) -> int:
    """Bytes of the slots, in whole pages."""
    return sum(-(-num_rows * chunk.num * dtype.itemsize // ALIGNMENT) * ALIGNMENT for chunk in plan)

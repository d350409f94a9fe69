"""Which slice of which checkpoint tensor goes where, learned by watching an engine's own loader.

The loader runs as it is; each copy from a checkpoint's tensor into one of the engine's is written down and not carried
out. It knows no names and no engine. What the slices say about sharing is `rollplex.sharing.classify`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rollplex.sharing.layout import Block


@dataclass(frozen=True, kw_only=True)
class Copied:
    """One dense copy that a loader would have made, in elements."""

    tensor: str
    """The engine's tensor."""
    offset: int
    """Where in it the copy begins."""
    source: str
    """The checkpoint's tensor."""
    source_offset: int
    """Where in that the copied slice begins."""
    shape: tuple[int, ...]
    """Of the slice."""
    strides: tuple[int, ...]
    """Of the slice in the engine's tensor."""
    source_strides: tuple[int, ...]
    """Of the slice in the checkpoint's tensor."""

    @property
    def num_elements(self) -> int:
        """Numbers copied."""
        return torch.Size(self.shape).numel()

    @property
    def dense(self) -> bool:
        """Whether both ends are one run of elements in the same order, so that one can be a view of the other."""
        wanted = _contiguous(self.shape)
        ones = [i for i, size in enumerate(self.shape) if size != 1]
        return all(strides[i] == wanted[i] for strides in (self.strides, self.source_strides) for i in ones)


class Recorder(TorchDispatchMode):
    """Inside it, copies from ``checkpoint`` into ``tensors`` are noted instead of made.

    >>> engine, checkpoint = {"qkv": torch.zeros(4, 2)}, {"q": torch.ones(2, 2), "kv": torch.ones(2, 2)}
    >>> with Recorder(engine, checkpoint) as recorder:
    ...     for start, loaded in enumerate(checkpoint.values()):
    ...         _ = engine["qkv"][2 * start : 2 * start + 2].copy_(loaded)
    >>> [(copy.source, copy.offset) for copy in recorder.copies], engine["qkv"].sum().item()
    ([('q', 0), ('kv', 4)], 0.0)
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], checkpoint: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.copies: list[Copied] = []
        self._tensors = _Places(tensors)
        self._checkpoint = _Places(checkpoint)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note a copy between the two sides; let everything else happen."""
        if func is torch.ops.aten.copy_.default:
            target, source = args[:2]
            to, of = self._tensors.find(target), self._checkpoint.find(source)
            if to and of and target.shape == source.shape and target.dtype == source.dtype:
                self.copies.append(
                    Copied(
                        tensor=to[0],
                        offset=to[1],
                        source=of[0],
                        source_offset=of[1],
                        shape=tuple(target.shape),
                        strides=target.stride(),
                        source_strides=source.stride(),
                    )
                )
                return target
        return func(*args, **(kwargs or {}))


class _Places:
    """Named tensors by where they lie; several may lie in one storage."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._by_storage: dict[int, list[tuple[str, int, int]]] = {}
        for name, tensor in named.items():
            if not tensor.is_contiguous():
                raise ValueError(f"recording a loader: {name} is not contiguous (strides {tensor.stride()})")
            start = int(tensor.storage_offset())
            self._by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(
                (name, start, start + tensor.numel())
            )

    def find(self, tensor: torch.Tensor) -> tuple[str, int] | None:
        """Name of the tensor that a view lies in, and the view's first element in it."""
        at = int(tensor.storage_offset())
        for name, start, end in self._by_storage.get(tensor.untyped_storage().data_ptr(), ()):
            if start <= at < end:
                return name, at - start
        return None


def blocks(copies: Iterable[Copied], checkpoint: Mapping[str, torch.Tensor]) -> dict[str, tuple[Block, ...]]:
    """The rectangles that each of the engine's tensors is stacked from, as `Layout.held` describes them.

    >>> one = Copied(tensor="up", offset=0, source="w", source_offset=8, shape=(2, 4), strides=(4, 1), source_strides=(4, 1))
    >>> blocks([one], {"w": torch.zeros(6, 4)})
    {'up': (Block(name='w', row=2, rows=2, column=0, columns=4),)}
    """
    found: dict[str, list[Block]] = {}
    for copy in sorted(copies, key=lambda c: (c.tensor, c.offset)):
        shape = checkpoint[copy.source].shape
        width = shape.numel() // shape[0]
        row, column = divmod(copy.source_offset, width)
        rows, columns = copy.shape[0], copy.num_elements // copy.shape[0]
        found.setdefault(copy.tensor, []).append(Block(copy.source, row, rows, column, columns))
    return {tensor: joined(stack) for tensor, stack in found.items()}


def joined(stack: Iterable[Block]) -> tuple[Block, ...]:
    """The same rectangles with those that continue each other made one.

    >>> joined([Block("w", 0, 2, 0, 4), Block("w", 2, 3, 0, 4)])
    (Block(name='w', row=0, rows=5, column=0, columns=4),)
    """
    made: list[Block] = []
    for block in stack:
        last = made[-1] if made else None
        if last and last == replace(block, row=block.row - last.rows, rows=last.rows):
            made[-1] = replace(last, rows=last.rows + block.rows)
        else:
            made.append(block)
    return tuple(made)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor of this shape."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))

"""Tensors of a trainer and an engine over one region of memory: bound once, checked every step.

It makes the views that a `Pairing` says, puts existing parameters on them, and notices when somebody takes a parameter
off again. It moves no weight: `rollplex.sharing.exchange` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rollplex.sharing.classify import View
from rollplex.sharing.layout import Layout
from rollplex.sharing.pairing import Home, Pairing, Side
from rollplex.sharing.stamp import Stamp

MOST_NAMED = 6
"""Tensors that an error names; it counts the rest."""


class BindingError(RuntimeError):
    """A parameter is not, or is no longer, a view of the region."""


@dataclass(eq=False)
class Binding:
    """One physical copy of a device's weights, as trainer and engine see it. Made by `bind`."""

    pairing: Pairing
    """Whose bytes each tensor is."""
    trainer: dict[str, torch.Tensor]
    """The trainer's tensors: matrices ``[rows, columns]``, or ``[blocks, rows, columns]`` where they are blocks."""
    engine: dict[str, torch.Tensor]
    """The engine's, padding rows included."""
    stamp: Stamp
    """The version of the weights in the region."""

    def __post_init__(self) -> None:
        self._adopted: dict[Side, dict[str, torch.Tensor]] = {"trainer": {}, "engine": {}}

    def tensors(self, side: Side) -> dict[str, torch.Tensor]:
        """All tensors of a side."""
        return self.trainer if side == "trainer" else self.engine

    @torch.no_grad()
    def adopt(self, side: Side, parameters: Mapping[str, torch.Tensor], *, keep_values: bool = True) -> None:
        """Make existing parameters views of the region, by name; their values are written into it first.

        Without ``keep_values`` they take the region's instead: the other side has filled it. A second name of a bound
        parameter (a tied embedding) follows it.
        """
        names = self._by_storage(side, parameters)
        views = {name: self._shaped(side, bound, parameters[name]) for name, bound in names.items()}
        for name, view in views.items():
            if keep_values:
                view.copy_(parameters[name])
        for name, view in views.items():
            parameters[name].data = view
        self._adopted[side] = views

    def check(self, side: Side, now: Mapping[str, torch.Tensor]) -> None:
        """Refuse parameters that are not where `adopt` put them: replaced, cast, resized, missing.

        Pass what the module holds now, such as ``dict(module.named_parameters())``. It looks at no number.
        """
        bound = self._adopted[side]
        _same_names(side, set(now), set(bound), doing="checking")
        found = [(name, why) for name, view in bound.items() if (why := _moved(now[name], view))]
        if found:
            lines = [f"  {name}: {why}" for name, why in found[:MOST_NAMED]]
            more = f"\n  and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
            raise BindingError(
                f"checking the {side}'s {len(bound)} bound parameters: {len(found)} are no longer in the shared region, "
                "so that the other side does not see their updates. Write in place (param.copy_) instead of assigning, "
                "or bind again:\n" + "\n".join(lines) + more
            )

    def _by_storage(self, side: Side, parameters: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Parameter name -> bound name. Names that are not bound must be second names of storages that are."""
        bound = {name: name for name in parameters if name in self.tensors(side)}
        by_bytes = {_bytes(parameters[name]): name for name in bound}
        for name, parameter in parameters.items():
            if name not in bound and _bytes(parameter) in by_bytes:
                bound[name] = by_bytes[_bytes(parameter)]
        _same_names(side, set(parameters), set(bound) | set(self.tensors(side)), doing="binding")
        return bound

    def _shaped(self, side: Side, bound: str, parameter: torch.Tensor) -> torch.Tensor:
        """The region's tensor in a parameter's shape; padding rows are left off where the parameter has none."""
        tensor = self.tensors(side)[bound]
        if parameter.dtype != tensor.dtype:
            raise BindingError(
                f"binding the {side}'s {bound}: it is {parameter.dtype}, and the region has {tensor.dtype} for it. "
                "Cast the parameter first, or name it in the pairing's dtypes."
            )
        if tensor.dim() == 3 and parameter.dim() != 3:
            raise BindingError(
                f"binding the {side}'s {bound}: in the engine's tensor it lies as {tensor.shape[0]} blocks, and the "
                f"parameter has shape {tuple(parameter.shape)}. Give it shape {tuple(tensor.shape)} and a product a "
                "block, or lay it out with min_block_bytes=None to have it copied."
            )
        rows = parameter.shape[0] if parameter.dim() else 1
        missing = tensor.numel() - parameter.numel()
        padding = tensor.dim() == 2 and missing == (tensor.shape[0] - rows) * tensor.shape[1]
        if missing and not (
            padding and 0 < missing <= _padding_rows(self.pairing.layouts[side, bound]) * tensor.shape[1]
        ):
            raise BindingError(
                f"binding the {side}'s {bound}: it has shape {tuple(parameter.shape)}, and its layout "
                f"{tuple(tensor.shape)}. Check the parallel degree and rank that the layout was made for."
            )
        return (tensor[:rows] if missing else tensor).view(parameter.shape)

    def __repr__(self) -> str:
        shared, private = self.pairing.shared_bytes, self.pairing.private_bytes
        return f"Binding({len(self.trainer)} tensors: {shared:,} bytes shared, {private:,} copied, {self.stamp!r})"


def bind(pairing: Pairing, memory: torch.Tensor) -> Binding:
    """Both sides' tensors over a region's bytes, whose values stay as they are.

    ``memory`` is a `Region`'s ``bytes``, or the same pages as another process maps them. The trainer's incompatible
    tensors get memory of their own, here and in no other process.

    >>> from rollplex.sharing.layout import Layout, Piece
    >>> from rollplex.sharing.pairing import pair
    >>> parts = [Piece(name=name, rows=2, columns=4) for name in ("gate", "up")]
    >>> fused = Layout(tensor="gate_up", pieces=tuple(parts))
    >>> made = pair([Layout(tensor=p.name, pieces=(p,)) for p in parts], [fused], dtype=torch.float32)
    >>> binding = bind(made, torch.zeros(made.nbytes, dtype=torch.uint8))
    >>> _ = binding.trainer["up"].fill_(1.0)
    >>> binding.engine["gate_up"].sum(dim=1)
    tensor([0., 0., 4., 4.])
    """
    if memory.dtype != torch.uint8 or memory.dim() != 1 or memory.numel() < pairing.nbytes:
        raise ValueError(
            f"binding a region of {pairing.nbytes:,} bytes: found a tensor of shape {tuple(memory.shape)}, "
            f"{memory.dtype}. Pass at least so many bytes, as a vector of torch.uint8."
        )
    owners = {place: _flat(memory, home) for place, home in pairing.owners.items()}
    matrices = {place: _matrix(owners[place], home) for place, home in pairing.owners.items()}
    trainer = {}
    for layout in pairing.train:
        view, own = pairing.sharings[layout.tensor].view, matrices.get(("trainer", layout.tensor))
        if own is not None:
            trainer[layout.tensor] = own
        elif view is not None:
            trainer[layout.tensor] = _view(owners["engine", view.tensor], view)
        else:
            kind = pairing.dtypes[layout.tensor]
            trainer[layout.tensor] = torch.zeros(layout.rows, layout.columns, dtype=kind, device=memory.device)
    engine = {
        layout.tensor: matrices["engine", layout.tensor]
        if layout.tensor not in pairing.reverse
        else _view(owners["trainer", pairing.reverse[layout.tensor].tensor], pairing.reverse[layout.tensor])
        for layout in pairing.engine
    }
    return Binding(pairing=pairing, trainer=trainer, engine=engine, stamp=Stamp(memory))


def _flat(memory: torch.Tensor, home: Home) -> torch.Tensor:
    return memory[home.offset_bytes : home.offset_bytes + home.nbytes].view(home.dtype)


def _matrix(flat: torch.Tensor, home: Home) -> torch.Tensor:
    rows, columns = home.layout.rows, home.layout.columns
    return flat.view(rows, columns) if home.storage == "rows" else flat.view(columns, rows).T


def _view(owner: torch.Tensor, view: View) -> torch.Tensor:
    return owner.as_strided(view.shape, view.strides, owner.storage_offset() + view.offset)


def _bytes(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _padding_rows(layout: Layout) -> int:
    return layout.rows - sum(block.rows for block in layout.held)


def _moved(now: torch.Tensor, bound: torch.Tensor) -> str | None:
    """What became of a bound parameter; None if nothing."""
    if now.dtype != bound.dtype:
        return f"cast from {bound.dtype} to {now.dtype}"
    if now.shape != bound.shape:
        return f"resized from {tuple(bound.shape)} to {tuple(now.shape)}"
    if now.data_ptr() != bound.data_ptr() or now.device != bound.device:
        return "replaced: its data lies elsewhere"
    if now.stride() != bound.stride():
        return f"laid out with strides {now.stride()} instead of {bound.stride()}"
    return None


def _same_names(side: Side, found: set[str], wanted: set[str], *, doing: str) -> None:
    if found == wanted:
        return
    raise BindingError(
        f"{doing} the {side}'s parameters: {len(found & wanted)} of {len(wanted)} names match; only given "
        f"{sorted(found - wanted)[:MOST_NAMED]}, only bound {sorted(wanted - found)[:MOST_NAMED]}. All parameters are "
        "bound or none: rename what differs, or describe what is missing in the layouts."
    )

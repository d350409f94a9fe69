"""torch.distributed.checkpoint, asked to reshard from one engine's blocks to another's, gives the same shards."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sharing.engine_fakes import Numbers, load, logical
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from rollplex.sharing.layout import Block, Layout, Piece

DEGREES = st.sampled_from([1, 2, 4])
HEADS = {"q": 8, "k": 4, "v": 4}
ATTENTION = tuple(Piece(name=name, rows=heads * 2, columns=8, unit=2) for name, heads in HEADS.items())


def placed(layout: Layout) -> list[tuple[Block, int]]:
    """The blocks of a layout with the local row that each begins at."""
    tops = np.cumsum([0, *(block.rows for block in layout.blocks)])
    return list(zip(layout.blocks, tops.tolist(), strict=False))


def chunk(block: Block) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size((block.row, block.column)), torch.Size((block.rows, block.columns)))


def reshard(piece: Piece, saved: list[tuple[Layout, Numbers]], wanted: Layout, into: Numbers) -> None:
    """Fill a piece's rows of a local matrix from the local matrices of all saving ranks."""
    sources = [(block, top, matrix) for layout, matrix in saved for block, top in placed(layout)]
    sources = [source for source in sources if source[0].name == piece.name]
    targets = [(block, top) for block, top in placed(wanted) if block.name == piece.name]
    metadata = TensorStorageMetadata(
        TensorProperties(), torch.Size((piece.rows, piece.columns)), [chunk(block) for block, *_ in sources]
    )
    for item in create_read_items_for_chunk_list(piece.name, metadata, [chunk(block) for block, _ in targets]):
        assert item.storage_index.index is not None
        assert item.dest_index.index is not None
        _, top, matrix = sources[item.storage_index.index]
        _, bottom = targets[item.dest_index.index]
        (rows, columns), (row, column) = item.lengths, item.storage_offsets
        to_row, to_column = item.dest_offsets
        read = matrix[top + row : top + row + rows, column : column + columns]
        into[bottom + to_row : bottom + to_row + rows, to_column : to_column + columns] = read


@st.composite
def engines(draw: st.DrawFn) -> Layout:
    """The first rank of an engine with some parallelism."""
    axis = draw(st.sampled_from(["rows", "columns", None]))
    packing = draw(st.sampled_from(["stacked", "interleaved"])) if axis != "columns" else "stacked"
    tp = draw(DEGREES)
    return Layout(tensor="qkv", pieces=ATTENTION, axis=axis, tp=tp, packing=packing, groups=4)


@settings(max_examples=60, deadline=None)
@given(engines(), engines())
def test_resharding_gives_the_shards_that_layouts_say(trainer: Layout, rollout: Layout) -> None:
    values = logical([trainer])
    saved = [(trainer.on(rank), load(trainer.on(rank), values)) for rank in range(trainer.tp)]
    for rank in range(rollout.tp):
        wanted = rollout.on(rank)
        local = np.full((wanted.rows, wanted.columns), -1)
        for piece in ATTENTION:
            reshard(piece, saved, wanted, local)
        assert np.array_equal(local, load(wanted, values))

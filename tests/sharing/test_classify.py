"""Verdicts come out of byte maps: they agree with comparing every element, and the views they name are true."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sharing.engine_fakes import brute_force, load, logical

from rollplex.sharing.classify import classify, fit
from rollplex.sharing.layout import Layout, Piece

DEGREES = st.sampled_from([1, 2, 4, 8])


@st.composite
def pieces(draw: st.DrawFn) -> tuple[tuple[Piece, ...], int]:
    """Pieces of a fused attention, a merged or a single projection, and their number of head groups."""
    columns, unit = draw(st.sampled_from([1, 4, 8, 16])), draw(st.integers(1, 3))
    kv, queries = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 3))
    heads = {"q": kv * queries, "k": kv, "v": kv}
    attention = tuple(Piece(name=n, rows=h * unit, columns=columns, unit=unit) for n, h in heads.items())
    rows = draw(st.integers(1, 17))
    plain = [Piece(name=name, rows=rows, columns=columns) for name in ("gate", "up")]
    return draw(st.sampled_from([(attention, kv), (tuple(plain), 1), ((plain[0],), 1)]))


@st.composite
def layouts(draw: st.DrawFn, tensor: str, parts: tuple[Piece, ...], groups: int) -> Layout:
    """Some engine's layout of pieces."""
    tp = draw(DEGREES)
    axis = draw(st.sampled_from(["rows", "rows", "columns", None]))
    attention = len(parts) == 3
    layout = Layout(
        tensor=tensor,
        pieces=tuple(replace(p, unit=1) for p in parts) if axis == "columns" else parts,
        axis=axis,
        tp=tp,
        rank=draw(st.integers(0, tp - 1)),
        order=draw(st.sampled_from([None, tuple(reversed(range(tp)))])),
        packing=draw(st.sampled_from(["stacked", "interleaved"])) if attention and axis != "columns" else "stacked",
        groups=groups,
        padded_to=1 if attention else draw(st.sampled_from([1, 8, 16])),
        storage=draw(st.sampled_from(["rows", "rows", "columns"])),
        transposable=draw(st.booleans()),
        min_block_bytes=draw(st.sampled_from([None, 0, 16, 200])),
    )
    try:
        assert layout.blocks
    except ValueError:
        assume(False)
    return layout


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Layout, Layout]:
    """Two layouts of the same pieces, or of one of them against all."""
    parts, groups = draw(pieces())
    owner = draw(layouts("owner", parts, groups))
    alone = draw(st.sampled_from([None, *parts]))
    inner = draw(layouts("inner", parts if alone is None else (alone,), groups))
    return inner, owner


@settings(max_examples=200, deadline=None)
@given(pairs())
def test_verdicts_agree_with_comparing_every_element(pair: tuple[Layout, Layout]) -> None:
    inner, owner = pair
    sharing = fit(inner, [owner])
    assert (None if sharing is None else sharing.case) == brute_force(inner, owner)


@settings(max_examples=60, deadline=None)
@given(pairs())
def test_a_view_shows_the_very_elements(pair: tuple[Layout, Layout]) -> None:
    inner, owner = pair
    sharing = fit(inner, [owner])
    assume(sharing is not None and sharing.view is not None)
    view, values = sharing.view, logical([inner, owner])
    stored = load(owner, values) if view.storage == "rows" else load(owner, values).T
    seen = torch.as_strided(torch.tensor(stored.ravel()), view.shape, view.strides, view.offset)
    assert np.array_equal(seen.flatten(0, -2).numpy(), load(inner, values))


@settings(max_examples=60, deadline=None)
@given(pairs())
def test_blocks_are_what_a_loader_lays_out(pair: tuple[Layout, Layout]) -> None:
    layout, other = pair
    values = logical([layout, other])
    stacked = [values[b.name][b.row : b.row + b.rows, b.column : b.column + b.columns] for b in layout.blocks]
    assert np.array_equal(np.concatenate(stacked), load(layout, values))


def test_the_random_pairs_meet_every_case() -> None:
    met: Counter[int | None] = Counter()

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(pairs())
    def count(pair: tuple[Layout, Layout]) -> None:
        met[brute_force(*pair)] += 1

    count()
    assert all(met[case] >= 5 for case in (1, 2, 3, None)), met


QKV = tuple(Piece(name=n, rows=rows * 2, columns=4, unit=2) for n, rows in (("q", 8), ("k", 4), ("v", 4)))
GROUPED = Layout(tensor="qkv_proj", pieces=QKV, axis="rows", tp=2)
INTERLEAVED = Layout(tensor="linear_qkv", pieces=QKV, axis="rows", packing="interleaved", groups=4, min_block_bytes=0)


def test_head_groups_interleaved_by_one_engine_alone_are_incompatible() -> None:
    sharing = classify(replace(INTERLEAVED, tp=4), [GROUPED])
    assert sharing.case == 3
    assert "no single stride" in sharing.why


def test_one_head_group_a_shard_is_the_same_interleaved_or_not() -> None:
    assert classify(replace(INTERLEAVED, tp=8, rank=1), [replace(GROUPED, tp=4)]).case == 1


def test_each_part_of_a_fused_tensor_is_a_view_of_its_own() -> None:
    alone = [Layout(tensor=p.name, pieces=(p,), axis="rows", tp=4, rank=1) for p in QKV]
    verdicts = [classify(layout, [GROUPED]) for layout in alone]
    assert [v.case for v in verdicts] == [1, 1, 1]
    assert [v.view.offset for v in verdicts if v.view] == [4 * 4, 10 * 4, 14 * 4]


MERGED = tuple(Piece(name=n, rows=8, columns=4) for n in ("gate", "up"))


@pytest.mark.parametrize(("min_block_bytes", "case"), [(16, 1), (17, 3), (None, 3)])
def test_a_merged_projection_is_shared_if_its_blocks_are_large_enough(min_block_bytes: int | None, case: int) -> None:
    ours = Layout(tensor="fc1", pieces=MERGED, axis="rows", tp=4, min_block_bytes=min_block_bytes)
    assert classify(ours, [Layout(tensor="gate_up_proj", pieces=MERGED, axis="rows", tp=2)]).case == case


def test_other_padding_moves_the_boundaries_of_shards() -> None:
    words = (Piece(name="embedding", rows=20, columns=4),)
    engine = Layout(tensor="embed_tokens", pieces=words, axis="rows", tp=2, padded_to=4)
    assert classify(Layout(tensor="e", pieces=words, axis="rows", tp=4, rank=1, padded_to=4), [engine]).case == 1
    other = classify(Layout(tensor="e", pieces=words, axis="rows", tp=4, rank=1, padded_to=32), [engine])
    assert other.case == 3
    assert "do not nest" in other.why


def test_the_engines_shard_may_be_the_view() -> None:
    whole = (Piece(name="w", rows=8, columns=4),)
    replicated, sharded = Layout(tensor="w", pieces=whole), Layout(tensor="e", pieces=whole, axis="rows", tp=2, rank=1)
    sharing = classify(replicated, [sharded])
    assert (sharing.tensor, sharing.case) == ("e", 1)


def test_ranks_that_do_not_nest_are_incompatible() -> None:
    weight = (Piece(name="w", rows=16, columns=4),)
    engine = Layout(tensor="e", pieces=weight, axis="rows", tp=2, rank=0)
    assert classify(Layout(tensor="w", pieces=weight, axis="rows", tp=4, rank=1), [engine]).case == 1
    assert classify(Layout(tensor="w", pieces=weight, axis="rows", tp=4, rank=2), [engine]).case == 3

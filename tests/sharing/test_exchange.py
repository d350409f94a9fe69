"""After what is planned has moved, every device's rollout shard is whole, and no more has moved than was missing."""

from __future__ import annotations

from typing import Literal

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollplex.sharing.bind import Binding, bind
from rollplex.sharing.checkpoint import collect, fill
from rollplex.sharing.exchange import Exchange, Transfer, _source, _target, subtract, transfers
from rollplex.sharing.layout import Block, Layout, Piece
from rollplex.sharing.pairing import Pairing, pair
from rollplex.sharing.plan import rank_map

HEADS = {"q": 8, "k": 4, "v": 4}
QKV = tuple(Piece(name=name, rows=heads * 2, columns=4, unit=2) for name, heads in HEADS.items())
DOWN = Piece(name="down", rows=4, columns=16)
WORDS = Piece(name="words", rows=20, columns=4)
NORM = Piece(name="norm", rows=6)


@st.composite
def devices(draw: st.DrawFn) -> list[Pairing]:
    """A trainer and an engine of random layouts and degrees, device by device."""
    rollout_tp = draw(st.sampled_from([1, 2, 4]))
    train_tp = rollout_tp * draw(st.sampled_from([1, 2, 4] if rollout_tp < 4 else [1, 2]))
    fused, blocks = draw(st.booleans()), draw(st.sampled_from([None, 0]))
    padded = draw(st.sampled_from([(8, 8), (8, 32)]))
    transposable = draw(st.booleans())

    def attention(tp: int, rank: int, packing: Literal["stacked", "interleaved"]) -> Layout:
        kind = {"packing": packing, "groups": 4, "min_block_bytes": blocks}
        return Layout(tensor="qkv", pieces=QKV, axis="rows", tp=tp, rank=rank, **kind)

    def rest(tp: int, rank: int, padding: int) -> list[Layout]:
        return [
            Layout(tensor="down", pieces=(DOWN,), axis="columns", tp=tp, rank=rank, transposable=transposable),
            Layout(tensor="words", pieces=(WORDS,), axis="rows", tp=tp, rank=rank, padded_to=padding),
            Layout(tensor="norm", pieces=(NORM,)),
        ]

    pairings = []
    for place in rank_map(train_tp, rollout_tp):
        rank, shard = place.train_rank, place.rollout_shard
        alone = [Layout(tensor=p.name, pieces=(p,), axis="rows", tp=train_tp, rank=rank) for p in QKV]
        train = [attention(train_tp, rank, "interleaved")] if fused and train_tp <= 4 else alone
        engine = [attention(rollout_tp, shard, "stacked"), *rest(rollout_tp, shard, padded[0])]
        pairings.append(pair([*train, *rest(train_tp, rank, padded[1])], engine, dtype=torch.float32))
    return pairings


def state() -> dict[str, torch.Tensor]:
    """Every number once, and none of them 0."""
    made, start = {}, 1
    for piece in (*QKV, DOWN, WORDS, NORM):
        num = piece.rows * piece.columns
        shape = (piece.rows, piece.columns) if piece.columns > 1 else (piece.rows,)
        made[piece.name] = torch.arange(start, start + num).view(shape).float()
        start += num
    return made


def updated(pairings: list[Pairing]) -> list[Binding]:
    """Regions in which each trainer has written its own part and nothing else."""
    bindings = [bind(pairing, torch.zeros(pairing.nbytes, dtype=torch.uint8)) for pairing in pairings]
    for pairing, binding in zip(pairings, bindings, strict=True):
        plain = {layout.tensor: torch.zeros(layout.rows, layout.columns) for layout in pairing.train}
        fill(pairing.train, plain, state())
        for name, values in plain.items():
            binding.trainer[name].copy_(values.view(binding.trainer[name].shape))
    return bindings


def carry_out(bindings: list[Binding], plan: tuple[Transfer, ...]) -> None:
    """As `Exchange` does over processes."""
    for transfer in plan:
        _target(bindings[transfer.target], transfer).copy_(_source(bindings[transfer.source], transfer))


def wanted(pairing: Pairing) -> dict[str, torch.Tensor]:
    whole = {layout.tensor: torch.zeros(layout.rows, layout.columns) for layout in pairing.engine}
    fill(pairing.engine, whole, state())
    return whole


@settings(max_examples=60, deadline=None)
@given(devices())
def test_every_shard_is_whole_after_the_exchange(pairings: list[Pairing]) -> None:
    bindings = updated(pairings)
    carry_out(bindings, transfers(pairings))
    for pairing, binding in zip(pairings, bindings, strict=True):
        for name, tensor in wanted(pairing).items():
            assert torch.equal(binding.engine[name], tensor)


@settings(max_examples=40, deadline=None)
@given(devices())
def test_nothing_moves_that_is_there_already(pairings: list[Pairing]) -> None:
    bindings = updated(pairings)
    missing = [
        sum(int((binding.engine[name] != tensor).sum()) for name, tensor in wanted(pairing).items())
        for pairing, binding in zip(pairings, bindings, strict=True)
    ]
    plan = transfers(pairings)
    assert [sum(t.nbytes for t in plan if t.target == rank) for rank in range(len(pairings))] == [
        4 * n for n in missing
    ]


@settings(max_examples=40, deadline=None)
@given(devices())
def test_what_is_shared_is_sent_and_received_in_place(pairings: list[Pairing]) -> None:
    bindings = [bind(pairing, torch.zeros(pairing.nbytes, dtype=torch.uint8)) for pairing in pairings]
    plan = transfers(pairings)
    private = {(rank, p.tensor) for rank, pairing in enumerate(pairings) for p in pairing.private}
    for rank, binding in enumerate(bindings):
        ours = [t for t in plan if rank in (t.source, t.target)]
        shared = [t for t in ours if (t.source, t.tensor) not in private]
        assert Exchange(binding, shared, rank).copied_bytes == 0


def test_an_interleaved_attention_is_copied_on_the_device_and_received_from_the_neighbour() -> None:
    """The control to the one above: here bytes are copied, and it is counted."""
    pairings = []
    for rank in (0, 1):
        train = Layout(tensor="linear_qkv", pieces=QKV, axis="rows", tp=2, rank=rank, packing="interleaved", groups=4)
        pairings.append(pair([train], [Layout(tensor="qkv_proj", pieces=QKV)], dtype=torch.float32))
    binding = bind(pairings[0], torch.zeros(pairings[0].nbytes, dtype=torch.uint8))
    exchange = Exchange(binding, transfers(pairings), 0)
    assert exchange.copied_bytes == 32 * 4 * 4 // 2
    assert sum(t.nbytes for t in transfers(pairings) if t.target == 0 != t.source) == 32 * 4 * 4 // 2


@settings(max_examples=60, deadline=None)
@given(devices())
def test_filling_and_collecting_are_inverse(pairings: list[Pairing]) -> None:
    shards = [(pairing.engine, wanted(pairing)) for pairing in pairings]
    found = collect(shards, {name: value.shape for name, value in state().items()})
    assert all(torch.equal(found[name], value) for name, value in state().items())


@given(st.tuples(*[st.integers(0, 5)] * 4), st.tuples(*[st.integers(0, 5)] * 4))
def test_a_block_is_what_it_shares_and_what_is_left(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    a, b = (Block("w", t[0], t[1] + 1, t[2], t[3] + 1) for t in (one, two))
    seen = torch.zeros(12, 12)
    common = a.common(b)
    for part in (*subtract(a, b), *([] if common is None else [common])):
        seen[part.row : part.row + part.rows, part.column : part.column + part.columns] += 1
    assert seen.sum() == a.rows * a.columns
    assert seen[a.row : a.row + a.rows, a.column : a.column + a.columns].eq(1).all()

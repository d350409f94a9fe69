"""One allocation, divided: slots never overlap, and what is freed can be had again in one piece."""

import gc
import random
import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollplex.memory.free_list import FreeList
from rollplex.memory.pool import ALIGNMENT, HostPool, HostPoolFullError


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60))
def test_taken_stretches_never_overlap_and_all_comes_back(changes: list[tuple[int, bool]]) -> None:
    free = FreeList(nbytes=256, granularity=4)
    taken: dict[int, int] = {}
    for size, give in changes:
        if give and taken:
            offset = sorted(taken)[size % len(taken)]
            free.give(offset, taken.pop(offset))
        elif (offset := free.take(size)) is not None:
            taken[offset] = size
        else:
            assert free.longest_bytes < free.rounded(size)
        spans = sorted((offset, offset + free.rounded(size)) for offset, size in taken.items())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert free.free_bytes == 256 - sum(end - start for start, end in spans)
    for offset, size in taken.items():
        free.give(offset, size)
    assert free.longest_bytes == 256


def test_giving_back_twice_is_caught() -> None:
    free = FreeList(nbytes=64, granularity=4)
    offset = free.take(8)
    assert offset == 0
    free.give(offset, 8)
    with pytest.raises(AssertionError, match="given back twice"):
        free.give(offset, 8)


def test_a_thousand_steps_of_changing_sizes_fit_where_the_first_did() -> None:
    """Long-lived state, and tapes of random sizes that come and go each step: no slow crumbling."""
    draw = random.Random(0)
    pool = HostPool(512 * ALIGNMENT)
    state = pool.take("policy.optimizer", 128 * ALIGNMENT)
    kept = state.tensor((128, ALIGNMENT), torch.uint8).fill_(7)
    for _ in range(1000):
        tapes = [pool.take("policy.tape", draw.randint(1, 20 * ALIGNMENT)) for _ in range(16)]
        draw.shuffle(tapes)
        for tape in tapes:
            tape.free()
        assert pool.free_bytes == 384 * ALIGNMENT
    assert pool.owners() == {"policy.optimizer": 128 * ALIGNMENT}
    assert bool((kept == 7).all())
    pool.take("all that is left, in one piece", 384 * ALIGNMENT)


def test_a_full_pool_says_who_holds_it() -> None:
    pool = HostPool(4 * ALIGNMENT)
    pool.take("reference.weights", 3 * ALIGNMENT)
    with pytest.raises(HostPoolFullError, match=r"for policy.tape.*4,096 of 16,384 are free.*reference.weights"):
        pool.take("policy.tape", 2 * ALIGNMENT)


def test_a_slot_is_a_tensor_of_any_type_until_it_is_freed() -> None:
    pool = HostPool(ALIGNMENT)
    with pool.take("x", 4096) as slot:
        values = slot.tensor((8, 16), torch.float64)
        assert values.data_ptr() == slot.bytes.data_ptr()
        assert values.data_ptr() % ALIGNMENT == 0
    assert pool.free_bytes == pool.nbytes
    with pytest.raises(RuntimeError, match="reading a pool slot of x: it was freed"):
        _ = slot.bytes
    slot.free()
    assert pool.free_bytes == pool.nbytes


def test_the_collector_may_free_a_slot_while_another_is_taken() -> None:
    """It runs whenever objects are made, also with the pool's lock held: a lock taken twice would hang here."""
    pool = HostPool(64 * ALIGNMENT)
    slots, threshold = [], gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(40):
            _Cycle(pool)
            slots.append(pool.take("policy.gradients", 1))
            slots.pop().free()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert pool.free_bytes == pool.nbytes


class _Cycle:
    """Frees its slot when the collector finds it."""

    def __init__(self, pool: HostPool) -> None:
        self.slot = pool.take("policy.tape", 1)
        self.itself = self

    def __del__(self) -> None:
        self.slot.free()


def test_a_pool_whose_slots_are_all_freed_goes_at_once() -> None:
    """No cycle keeps it until a collection: its bytes are the largest on the host."""
    pool = HostPool(2**20)
    gone = weakref.ref(pool)
    slots = [pool.take("x", 100) for _ in range(3)]
    for slot in slots:
        slot.free()
    gc.disable()
    try:
        del pool
        assert gone() is None
    finally:
        gc.enable()

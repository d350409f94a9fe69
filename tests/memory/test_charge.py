"""What torch allocates counts against the same budget, and the fullest moment is remembered."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch

from rollplex.memory.arena import Arena, OutOfDeviceMemory

MIB = 2**20


def test_charges_and_regions_share_a_budget(arena: Arena) -> None:
    arena.region("policy.weights", 5 * MIB)
    held = arena.charge("policy.tape", 2 * MIB)
    with pytest.raises(OutOfDeviceMemory, match=r"2.00 MiB of policy.boundary.*1.00 MiB are missing") as refused:
        arena.charge("policy.boundary", 2 * MIB)
    assert refused.value.owners == {"policy.weights": 5 * MIB, "policy.tape": 2 * MIB}
    with pytest.raises(OutOfDeviceMemory):
        arena.region("engine.kv", 2 * MIB)
    held.free()
    held.free()
    assert arena.resident_bytes == 5 * MIB
    arena.region("engine.kv", 2 * MIB)


def test_a_charge_ends_when_nobody_holds_it(arena: Arena) -> None:
    held = [arena.charge("a", 10), arena.charge("a", 5)]
    held.pop()
    assert arena.owners() == {"a": 10}
    held.clear()
    assert arena.owners() == {}


def test_the_fullest_moment_is_told_once(arena: Arena) -> None:
    region = arena.region("weights", MIB)
    arena.charge("tape", 10).free()
    region.evict()
    assert arena.fullest() == {"weights": MIB, "tape": 10}
    assert arena.fullest() == {}
    region.admit()
    assert arena.fullest() == {"weights": MIB}


def test_frozen_contents_stay_in_the_pool_and_are_copied_there_once(arena: Arena) -> None:
    region = arena.region("reference.weights", MIB, contents="frozen")
    region.bytes.fill_(3)
    region.evict()
    region.admit()
    assert arena.pool.owners() == {"reference.weights": MIB}
    region.bytes.fill_(4)  # which nobody should do
    region.evict()
    region.admit()
    assert bool((region.bytes == 3).all())
    region.free()
    assert arena.pool.owners() == {}


def test_bytes_of_a_resident_region_are_whole_pages_and_those_of_a_charge_are_not(arena: Arena) -> None:
    region, charge = arena.region("a", 10), arena.charge("b", 10)
    assert arena.owners() == {"a": arena.pages.granularity, "b": charge.nbytes}
    assert torch.equal(region.bytes, torch.zeros(10, dtype=torch.uint8))


def test_a_charge_that_ends_while_another_is_counted_is_counted_off(arena: Arena) -> None:
    """The collector may run between any two instructions; here it runs between all of them."""
    held = [arena.charge("a", 1) for _ in range(1000)]

    def collector(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if held and frame.f_code.co_filename.endswith("arena.py"):
            held.pop()
        return collector

    before = sys.gettrace()
    sys.settrace(collector)
    try:
        kept = [arena.charge("a", 10) for _ in range(5)]
    finally:
        sys.settrace(before)
    assert len(held) < 1000
    assert arena.owners() == {"a": 10 * len(kept) + len(held)}

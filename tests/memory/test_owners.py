"""Bytes count once, under the first who names them, and those of an arena only while they are there."""

from __future__ import annotations

from collections.abc import Generator

import torch

from rollplex.memory.arena import Arena
from rollplex.memory.owners import Owners, shared
from rollplex.phases.phase import Phase
from rollplex.resource import Resource

MIB = 2**20


class Reader(Phase):
    """Reads resources and does nothing."""

    def __init__(self, *resources: Resource, **held: int) -> None:
        self._resources, self._held = resources, held

    @property
    def name(self) -> str:
        return "reader"

    @property
    def writes(self) -> str:
        return "rollout"

    @property
    def reads(self) -> tuple[Resource, ...]:
        return self._resources

    def held(self) -> dict[str, int]:
        return self._held

    def run(self) -> Generator[str, None, None]:
        yield "nothing"


def test_a_shared_storage_is_the_firsts() -> None:
    weights, own = torch.zeros(256), torch.zeros(64)
    engine = Resource("engine.weights", (weights[3:], own))
    phases = [Reader(Resource("policy.weights", (weights,))), Reader(engine, engine)]
    assert Owners.of(phases, None).device == {"policy.weights": 1024, "engine.weights": 256}
    assert shared(phases) == {"engine.weights": ("policy.weights",)}


def test_resources_apart_share_nothing() -> None:
    apart = [Reader(Resource(name, (torch.zeros(4),))) for name in ("policy.weights", "reference.weights")]
    assert shared(apart) == {}


def test_a_third_reader_shares_with_who_has_the_bytes() -> None:
    weights = torch.zeros(4)
    readers = [Reader(Resource(name, (weights,))) for name in ("policy.weights", "engine.weights", "critic.weights")]
    assert shared(readers) == {"engine.weights": ("policy.weights",), "critic.weights": ("policy.weights",)}


def test_what_lies_in_an_arena_is_there_while_it_is_resident() -> None:
    arena = Arena.host(budget_bytes=8 * MIB)
    region = arena.region("reference.weights", 2 * MIB)
    phases = [Reader(Resource("reference.weights", (region.tensor((MIB,), torch.float16),)), kv=7)]
    there = Owners.of(phases, None, arena)
    assert there == Owners(arena={"reference.weights": 2 * MIB}, others={"kv": 7}, host={})
    region.evict()
    away = Owners.of(phases, None, arena)
    assert away == Owners(arena={}, others={"kv": 7}, host={"reference.weights": 2 * MIB})
    assert Owners.of(phases, None).device["reference.weights"] == 2 * MIB, "without the arena nobody knows"
    arena.close()


def test_what_lies_in_the_hosts_pool_is_not_on_the_device() -> None:
    arena = Arena.host(budget_bytes=MIB)
    with arena.pool.take("policy.optimizer", MIB) as slot:
        phases = [Reader(Resource("optimizer.state", (slot.tensor((MIB,), torch.uint8),)))]
        assert Owners.of(phases, None, arena) == Owners(arena={}, others={}, host={"policy.optimizer": MIB})
    arena.close()


def test_a_name_on_both_sides_is_added_up() -> None:
    both = Owners(arena={"policy.tape": 3}, others={"policy.tape": 4, "kv": 5}, host={})
    assert both.device == {"policy.tape": 7, "kv": 5}

"""Device pages come and go through the driver in the right order, and what fails half way leaves nothing behind."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator

import pytest
import torch
from memory.fake_driver import GRANULARITY, OK, CUresult, FakeDriver

from rollplex.memory.arena import Arena, OutOfDeviceMemory
from rollplex.memory.cuda_pages import CudaPages
from rollplex.memory.pages import OutOfPages
from rollplex.memory.pool import HostPool

CPU = torch.device("cpu")
BUDGET = 16 * GRANULARITY


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    made = FakeDriver()
    yield made
    assert made.empty(), "the test left memory or addresses behind"


def arena_over(driver: FakeDriver, budget: int = BUDGET) -> Arena:
    return Arena(CudaPages(8 * BUDGET, CPU, driver), budget, HostPool(2 * BUDGET))


def test_a_tensors_address_shape_and_contents_survive_an_eviction(driver: FakeDriver) -> None:
    arena = arena_over(driver)
    region = arena.region("policy.weights", 3 * GRANULARITY - 5)
    weight = region.tensor((64, 32), torch.float32, offset=4096).normal_().T
    before, place = weight.clone(), (weight.data_ptr(), weight.shape, weight.stride(), weight.storage_offset())
    region.evict()
    assert driver.used == arena.pages.backed_bytes == 0
    region.admit()
    assert torch.equal(weight, before)
    assert (weight.data_ptr(), weight.shape, weight.stride(), weight.storage_offset()) == place
    arena.close()


def test_the_driver_is_called_in_its_order(driver: FakeDriver) -> None:
    pages = CudaPages(BUDGET, CPU, driver)
    pages.back(0, GRANULARITY)
    pages.release(0, GRANULARITY)
    pages.close()
    assert driver.calls == [
        "granularity", "reserve", "create", "map", "access", "unmap", "release", "free",
    ]  # fmt: skip


def test_fresh_pages_are_zeros_whatever_the_device_left_in_them(driver: FakeDriver) -> None:
    arena = arena_over(driver)
    region = arena.region("snapshot", GRANULARITY, contents="regenerable")
    assert not region.bytes.any()
    region.bytes.fill_(9)
    region.evict()
    region.admit()
    assert not region.bytes.any()
    arena.close()


def test_a_region_that_is_not_resident_costs_no_memory(driver: FakeDriver) -> None:
    arena = arena_over(driver)
    region = arena.region("later", GRANULARITY, resident=False)
    assert (driver.used, "create" in driver.calls) == (0, False)
    region.admit()
    assert driver.used == GRANULARITY
    arena.close()


def test_lengths_are_of_whole_units_of_the_device(driver: FakeDriver) -> None:
    arena = arena_over(driver)
    arena.region("a", 1)
    assert (arena.pages.granularity, arena.resident_bytes) == (GRANULARITY, GRANULARITY)
    arena.close()


@pytest.mark.parametrize("call", ["create", "map", "access"])
def test_a_backing_that_fails_half_way_leaves_nothing(driver: FakeDriver, call: str) -> None:
    arena = arena_over(driver)
    driver.failing = call
    with pytest.raises(RuntimeError, match="on cpu: the driver answered CUDA_ERROR_NOT_SUPPORTED"):
        arena.region("policy.weights", GRANULARITY)
    assert not driver.mapped
    assert not driver.files
    driver.failing = ""
    arena.region("the same addresses again", arena.pages.nbytes, resident=False)
    arena.close()


def test_a_device_that_others_filled_is_out_of_memory_with_the_owners_named(driver: FakeDriver) -> None:
    arena = arena_over(driver)
    arena.region("policy.weights", 2 * GRANULARITY)
    away = arena.region("reference.weights", 3 * GRANULARITY, resident=False)
    driver.capacity = 4 * GRANULARITY
    with pytest.raises(OutOfDeviceMemory, match=r"of reference\.weights") as refused:
        away.admit()
    assert refused.value.owners == {"policy.weights": 2 * GRANULARITY}
    assert refused.value.budget_bytes == 4 * GRANULARITY, "what the device had, not what the arena hoped for"
    with pytest.raises(OutOfDeviceMemory):
        arena.region("engine.kv", 3 * GRANULARITY)
    assert (away.resident, driver.used) == (False, 2 * GRANULARITY)
    driver.capacity = 5 * GRANULARITY
    away.admit()
    arena.close()


def test_pages_alone_say_how_much_was_free(driver: FakeDriver) -> None:
    pages = CudaPages(BUDGET, CPU, driver)
    driver.capacity = GRANULARITY
    with pytest.raises(OutOfPages) as refused:
        pages.back(0, 2 * GRANULARITY)
    assert (refused.value.nbytes, refused.value.free_bytes) == (2 * GRANULARITY, GRANULARITY)
    pages.close()


def test_another_range_adopts_pages_by_their_descriptor(driver: FakeDriver) -> None:
    ours, theirs = CudaPages(BUDGET, CPU, driver), CudaPages(BUDGET, CPU, driver)
    ours.back(0, GRANULARITY)
    ours.tensor(0, 8).fill_(11)
    descriptor = ours.export(0)
    theirs.adopt(GRANULARITY, GRANULARITY, descriptor)
    os.close(descriptor)
    seen = theirs.tensor(GRANULARITY, 8)
    assert seen.tolist() == [11] * 8
    seen.fill_(22)
    assert ours.tensor(0, 8).tolist() == [22] * 8
    ours.close()
    assert seen.tolist() == [22] * 8, "memory stays while one process still maps it"
    assert driver.used == GRANULARITY
    theirs.close()


def test_an_adoption_that_fails_leaves_nothing(driver: FakeDriver) -> None:
    pages = CudaPages(BUDGET, CPU, driver)
    pages.back(0, GRANULARITY)
    descriptor = pages.export(0)
    with pytest.raises(RuntimeError, match="mapping"):
        pages.adopt(0, GRANULARITY, descriptor)  # the place is taken
    os.close(descriptor)
    assert pages.backed_bytes == driver.used == GRANULARITY
    pages.close()


def test_what_has_no_pages_is_not_exported(driver: FakeDriver) -> None:
    pages = CudaPages(BUDGET, CPU, driver)
    with pytest.raises(RuntimeError, match="exporting the pages at 0: there are none"):
        pages.export(0)
    pages.close()
    with pytest.raises(RuntimeError, match="were closed"):
        pages.tensor(0, 8)
    pages.close()


def test_the_stand_in_refuses_what_a_driver_refuses(driver: FakeDriver) -> None:
    what = driver.CUmemAllocationProp()
    what.type = what.location.type = what.requestedHandleTypes = 1
    access = [driver.CUmemAccessDesc()]
    access[0].flags = 3
    base = driver.cuMemAddressReserve(2 * GRANULARITY, GRANULARITY, 0, 0)[1]
    handle = driver.cuMemCreate(GRANULARITY, what, 0)[1]
    refused = [
        driver.cuMemCreate(GRANULARITY + 1, what, 0),
        driver.cuMemSetAccess(base, GRANULARITY, access, 1),
        driver.cuMemUnmap(base, GRANULARITY),
        driver.cuMemMap(base - GRANULARITY, GRANULARITY, 0, handle, 0),
    ]
    assert driver.cuMemMap(base, GRANULARITY, 0, handle, 0) == (OK,)
    refused += [driver.cuMemMap(base, GRANULARITY, 0, handle, 0), driver.cuMemAddressFree(base, 2 * GRANULARITY)]
    assert {answer[0] for answer in refused} == {CUresult.CUDA_ERROR_INVALID_VALUE}
    assert not driver.empty()
    assert driver.cuMemRelease(handle) == driver.cuMemUnmap(base, GRANULARITY) == (OK,)
    assert driver.cuMemAddressFree(base, 2 * GRANULARITY) == (OK,)


def test_without_the_bindings_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without_cuda(name: str, *rest: object, **more: object) -> object:
        if name.startswith("cuda"):
            raise ImportError(name)
        return imported(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_cuda)
    with pytest.raises(ImportError, match=r"pip install 'rollplex\[cuda\]'"):
        Arena.cuda(BUDGET)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_the_error_names_the_host_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = type(sys)("cuda.bindings")
    fake.driver = FakeDriver()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", type(sys)("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", fake)
    with pytest.raises(RuntimeError, match=r"torch sees no CUDA device\. Use Arena\.host"):
        Arena.cuda(BUDGET)

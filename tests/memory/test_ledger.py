"""A ledger adds up: owners and what nobody owns are all that is allocated, and every shared byte is there once."""

from __future__ import annotations

import gc
import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
import torch
from memory.test_owners import Reader

import rollplex
from rollplex.json_out import plain
from rollplex.memory.allocated import Allocated, _by_driver
from rollplex.memory.arena import Arena
from rollplex.memory.ledger import Ledger, ledger
from rollplex.recorder import Recorder
from rollplex.resource import Resource
from rollplex.run import Run
from rollplex.trace import Trace

CPU = torch.device("cpu")
MIB = 2**20


def run_of(*phases: Reader, arena: Arena | None = None) -> Run:
    """As much of a run as a ledger reads."""
    trace = Trace(device="cpu (2 cores)")
    recorder = Recorder(trace, phases, CPU, arena=arena)
    return cast(Run, SimpleNamespace(phases=phases, last=None, recorder=recorder, trace=trace))


def test_owners_and_what_nobody_owns_are_all_that_is_allocated() -> None:
    weights = torch.zeros(MIB)
    found = ledger(run_of(Reader(Resource("policy.weights", (weights[:7],)))))
    assert found.owners == {"policy.weights": 4 * MIB}
    assert found.owned_bytes + found.unattributed_bytes == found.allocated.nbytes
    assert found.unattributed_bytes >= 0


def test_a_tensor_that_a_notebook_holds_is_unattributed() -> None:
    run = run_of(Reader(Resource("policy.weights", (torch.zeros(4),))))
    gc.collect()  # what other tests left behind must not go between the two looks
    before = ledger(run).unattributed_bytes
    held = torch.zeros(5 * MIB, dtype=torch.uint8)
    view = held[3:].view(-1)
    assert ledger(run).unattributed_bytes - before == 5 * MIB
    del held, view
    assert ledger(run).unattributed_bytes == before


def test_a_shared_byte_is_the_firsts_and_the_reader_is_named() -> None:
    weights = torch.zeros(MIB)
    owner, reader = (Reader(Resource(name, (weights,))) for name in ("policy.weights", "engine.weights"))
    found = ledger(run_of(owner, reader))
    assert (found.owners, found.shared) == ({"policy.weights": 4 * MIB}, {"engine.weights": ("policy.weights",)})
    assert "engine.weights lies in policy.weights" in str(found)


def test_the_hosts_pool_has_its_own_band() -> None:
    arena = Arena.host(budget_bytes=8 * MIB)
    here, away = arena.region("policy.weights", 3 * MIB), arena.region("reference.weights", 2 * MIB)
    here.bytes.fill_(1)
    bare = Allocated.on(CPU, arena)
    away.bytes.fill_(1)
    assert Allocated.on(CPU, arena).nbytes - bare.nbytes == 2 * MIB
    away.evict()
    phases = [Reader(Resource(r.owner, (r.tensor((MIB,), torch.uint8),))) for r in (here, away)]
    found = ledger(run_of(*phases, arena=arena))
    assert found.owners == {"policy.weights": 3 * MIB}
    assert found.host == {"reference.weights": 2 * MIB}
    assert (found.budget_bytes, found.pool_bytes) == (8 * MIB, arena.pool.nbytes)
    assert found.allocated.arena_bytes == 3 * MIB
    arena.close()


def test_it_is_json_a_table_and_a_line() -> None:
    found = made(owners={"policy.weights": 3 * MIB, "a<b>": MIB}, tensors_bytes=5 * MIB, host={"optimizer": MIB})
    document = json.loads(json.dumps(plain(found.document())))
    assert document["unattributed_bytes"] == MIB
    assert document["host_owners_bytes"] == {"optimizer": MIB}
    assert "        1.00 MiB  unattributed" in str(found)
    html = found._repr_html_()
    assert "a&lt;b&gt;" in html
    assert "a<b>" not in html
    assert html.index("unattributed") < html.index("In host memory") < html.index("optimizer")
    assert repr(found) == "Ledger(2 owners, 4,194,304 of 5,242,880 bytes owned)"


def test_claims_beyond_what_there_is_are_shown() -> None:
    found = made(owners={"policy.tape": 3 * MIB}, tensors_bytes=2 * MIB)
    assert found.unattributed_bytes == -MIB
    assert "−1 MiB" in found._repr_html_()


def test_the_process_has_at_least_the_pages_that_were_touched() -> None:
    pages = torch.ones(16 * MIB, dtype=torch.uint8)
    found = Allocated.on(CPU)
    assert found.process_bytes is not None
    assert found.process_bytes > pages.nbytes
    assert found.cached_bytes == 0


@pytest.mark.parametrize(("pid", "expected"), [(None, 77), (1, None)])
def test_the_driver_tells_of_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, pid: int | None, expected: int | None
) -> None:
    asked: list[str] = []
    fake = ModuleType("pynvml")
    mine = SimpleNamespace(pid=os.getpid() if pid is None else pid, usedGpuMemory=77)
    fake.nvmlInit = lambda: asked.append("init")  # type: ignore[attr-defined]
    fake.nvmlShutdown = lambda: asked.append("shutdown")  # type: ignore[attr-defined]
    fake.nvmlDeviceGetHandleByUUID = asked.append  # type: ignore[attr-defined]
    fake.nvmlDeviceGetComputeRunningProcesses = lambda handle: [mine]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="ab-cd"))
    assert _by_driver(torch.device("cuda:0")) == expected
    assert asked == ["init", "GPU-ab-cd", "shutdown"]


def test_without_the_library_the_driver_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _by_driver(torch.device("cuda:0")) is None


def test_the_package_offers_it() -> None:
    assert rollplex.ledger is ledger
    assert rollplex.memory.Ledger is Ledger


def made(*, owners: dict[str, int], tensors_bytes: int, host: dict[str, int] | None = None) -> Ledger:
    allocated = Allocated(tensors_bytes=tensors_bytes, arena_bytes=0, cached_bytes=0, process_bytes=None)
    return Ledger(
        device="cpu (2 cores)",
        owners=owners,
        shared={},
        allocated=allocated,
        budget_bytes=None,
        host=host or {},
        pool_bytes=None if host is None else 8 * MIB,
    )

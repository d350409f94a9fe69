"""Whether arenas work on this machine's GPU: ``python scripts/check_cuda_arena.py [--device 0] [--mib 256]``.

One line a claim, PASS or FAIL with what was found; the exit status is the number of failures. Without a GPU nothing is
claimed: it says so and exits with 2. It needs ``pip install 'rollplex[cuda]'`` and takes seconds.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import torch

from rollplex.memory.arena import Arena, Contents, OutOfDeviceMemory, Region
from rollplex.memory.cuda_pages import CudaPages
from rollplex.memory.pool import HostPool

Check = Callable[[Arena, int], str]
"""Raises AssertionError with what is wrong, or returns what was found."""


def keeps_its_place(arena: Arena, nbytes: int) -> str:
    """A tensor's address, strides and contents survive an eviction."""
    with region(arena, nbytes) as weights:
        tensor = weights.tensor((nbytes // 8, 2), torch.float32).normal_().T
        before, place = tensor.cpu(), (tensor.data_ptr(), tensor.stride(), tensor.storage_offset())
        weights.evict()
        weights.admit()
        assert place == (tensor.data_ptr(), tensor.stride(), tensor.storage_offset()), "the tensor moved"
        assert torch.equal(before, tensor.cpu()), "its contents changed"
        return f"{nbytes / 2**20:.0f} MiB at {place[0]:#x}"


def returns_memory(arena: Arena, nbytes: int) -> str:
    """An eviction gives the device its memory back."""
    with region(arena, nbytes, contents="regenerable") as rollout:
        full = torch.cuda.mem_get_info()[0]
        rollout.evict()
        back = torch.cuda.mem_get_info()[0] - full
        assert back >= 0.99 * nbytes, f"{back:,} of {nbytes:,} bytes came back"
        return f"{back:,} of {nbytes:,} bytes"


def starts_as_zeros(arena: Arena, nbytes: int) -> str:
    """Fresh pages hold nothing of their last user."""
    with region(arena, nbytes, contents="regenerable") as snapshot:
        snapshot.bytes.fill_(170)
        snapshot.evict()
        snapshot.admit()
        assert not bool(snapshot.bytes.any()), "found bytes of before"
        return "all zero"


def graph_survives(arena: Arena, nbytes: int) -> str:
    """A CUDA graph over a region replays after an eviction."""
    with region(arena, nbytes) as weights:
        values = weights.tensor((nbytes // 4,), torch.float32)
        out = torch.empty_like(values)
        torch.add(values, 1, out=out)  # warm up outside of the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.add(values, 1, out=out)
        weights.evict()
        weights.admit()
        values.fill_(41)
        graph.replay()
        assert bool((out == 42).all()), f"replayed to {out[0].item()}"
        return "replays on the re-admitted pages"


def trains(arena: Arena, nbytes: int) -> str:
    """Autograd and a matrix product work on a region's tensors."""
    with region(arena, nbytes) as weights:
        side = int((nbytes // 4) ** 0.5)
        weight = weights.tensor((side, side), torch.float32).normal_().requires_grad_(True)
        (torch.ones(2, side, device=weight.device) @ weight).sum().backward()
        assert weight.grad is not None
        assert bool((weight.grad == 2).all()), "the gradient is wrong"
        return f"{side} x {side}"


def waits_for_work(arena: Arena, nbytes: int) -> str:
    """Work of another stream is finished before contents are copied away."""
    with region(arena, nbytes) as weights:
        values, stream = weights.tensor((nbytes // 4,), torch.float32), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)  # noqa: SLF001 - clock cycles of a device: about a tenth of a second
            values.fill_(7)
        weights.evict()
        weights.admit()
        assert bool((values == 7).all()), "the copy was taken before the work was done"
        return "copied after the stream was done"


def refuses_what_does_not_fit(arena: Arena, nbytes: int) -> str:
    """A device that is full answers with OutOfDeviceMemory, and goes on working."""
    free = torch.cuda.mem_get_info()[0]
    big = Arena.cuda(4 * free, address_bytes=4 * free, pool=HostPool(1 << 20))
    refused = None
    try:
        big.region("too large", 2 * free)
    except OutOfDeviceMemory as error:
        refused = error
    big.close()
    assert refused is not None, f"{2 * free:,} bytes were given where {free:,} are free"
    assert refused.budget_bytes <= free + 2**30, f"said that {refused.budget_bytes:,} bytes were there"
    with region(arena, nbytes):
        return f"{free:,} bytes free, twice that refused"


def shares_with_a_process(arena: Arena, nbytes: int) -> str:
    """A second process maps the same pages by a descriptor, reads, and writes."""
    assert isinstance(arena.pages, CudaPages)
    with region(arena, nbytes) as weights:
        weights.bytes.fill_(11)
        torch.cuda.synchronize()
        ours, theirs = socket.socketpair()
        device, mib = str(arena.pages.device.index), str(nbytes >> 20)
        command = [sys.executable, __file__, "--adopt", str(theirs.fileno()), "--device", device, "--mib", mib]
        with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True) as other:
            theirs.close()
            descriptor = arena.pages.export(weights.offset)
            socket.send_fds(ours, [b"x"], [descriptor])
            os.close(descriptor)
            answer, _ = other.communicate(timeout=120)
        assert answer.strip() == "11", f"the other process read {answer.strip()!r}"
        assert bool((weights.bytes == 22).all()), "what the other process wrote is not here"
        return "read 11, wrote 22"


def adopt(end: int, nbytes: int, device: int) -> None:
    """The second process: map what comes over the socket, print its first byte, and fill it with 22."""
    with socket.socket(fileno=end) as link:
        _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
    pages = CudaPages.reserve(nbytes, device=device)
    pages.adopt(0, pages.nbytes, descriptors[0])
    os.close(descriptors[0])
    tensor = pages.tensor(0, nbytes)
    print(int(tensor[0]))
    tensor.fill_(22)
    torch.cuda.synchronize()
    pages.close()


@contextmanager
def region(arena: Arena, nbytes: int, contents: Contents = "kept") -> Generator[Region]:
    """A region for the length of a block."""
    made = arena.region("check", nbytes, contents=contents)
    try:
        yield made
    finally:
        made.free()


CHECKS: tuple[Check, ...] = (
    keeps_its_place,
    returns_memory,
    starts_as_zeros,
    trains,
    graph_survives,
    waits_for_work,
    refuses_what_does_not_fit,
    shares_with_a_process,
)


def lines(arena: Arena, nbytes: int) -> Iterator[tuple[bool, str]]:
    """Whether each check holds, and its line."""
    for check in CHECKS:
        start = time.perf_counter()
        try:
            passed, found = True, check(arena, nbytes)
        except Exception as error:  # noqa: BLE001 - a check that breaks is a line like any other
            passed, found = False, f"{type(error).__name__}: {error}"
        claim = (check.__doc__ or "").strip()
        yield passed, f"{'PASS' if passed else 'FAIL'}  {claim} {found} ({time.perf_counter() - start:.2f} s)"


def main() -> int:
    """Run every check on one device."""
    parser = argparse.ArgumentParser(description="Whether arenas work on this machine's GPU.")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--adopt", type=int, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: torch sees none, so nothing was checked")
        return 2
    torch.cuda.set_device(asked.device)
    nbytes = asked.mib << 20
    if asked.adopt is not None:
        adopt(asked.adopt, nbytes, asked.device)
        return 0
    free = torch.cuda.mem_get_info()[0]
    arena = Arena.cuda(2 * nbytes, device=asked.device)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, pages of {arena.pages.granularity:,} bytes")
    failures = 0
    for passed, line in lines(arena, nbytes):
        print(line, flush=True)
        failures += not passed
    arena.close()
    torch.cuda.empty_cache()
    left = free - torch.cuda.mem_get_info()[0]
    leaked = left > nbytes // 10
    print(f"{'FAIL' if leaked else 'PASS'}  Nothing is left behind. {left:,} bytes fewer free than before")
    return failures + leaked


if __name__ == "__main__":
    sys.exit(main())

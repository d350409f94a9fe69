"""Pages of a CUDA device under addresses that stay: the one file that calls the driver's virtual-memory functions.

A range of addresses is reserved once. Backing a stretch creates physical memory and maps it there; releasing unmaps it
and gives it back to the device. Tensors over the range are made from the address alone, so they outlive both. It knows
no owners and no budget.
"""

# cuda-bindings is an extra and compiled without stubs: the file is type-checked without it too.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch

from rollplex.memory.pages import OutOfPages


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Physical memory under a part of the range."""

    handle: Any
    nbytes: int


class CudaPages:
    """Addresses of one CUDA device; a stretch is backed and released as a whole.

    ``driver`` is the module ``cuda.bindings.driver``, whose calls answer ``(error, *values)``.
    """

    def __init__(self, nbytes: int, device: torch.device, driver: Any) -> None:
        self.device = device
        self._driver = driver
        self._what = _allocation(driver, device.index or 0)
        self._backed: dict[int, _Stretch] = {}
        with self._current():
            smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
            answer = driver.cuMemGetAllocationGranularity(self._what, smallest)
            self._granularity = int(self._checked("asking for the page size", answer))
            self._nbytes = -(-nbytes // self._granularity) * self._granularity
            answer = driver.cuMemAddressReserve(self._nbytes, self._granularity, 0, 0)
            self._base: int | None = int(self._checked(f"reserving {self._nbytes:,} bytes of addresses", answer))

    @classmethod
    def reserve(cls, nbytes: int, *, device: int = 0) -> Self:
        """Fresh addresses on a device, with no pages under them."""
        driver = _bindings()
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"reserving {nbytes:,} bytes of addresses on CUDA device {device}: torch sees no CUDA device. Use "
                "Arena.host, where main memory stands for a device's."
            )
        torch.zeros(1, device=f"cuda:{device}")  # the first work on a device makes the context that all of this needs
        return cls(nbytes, torch.device("cuda", device), driver)

    @property
    def nbytes(self) -> int:
        """Length of the range."""
        return self._nbytes

    @property
    def granularity(self) -> int:
        """The device's smallest unit of mapping, 2 MiB on current ones."""
        return self._granularity

    @property
    def backed_bytes(self) -> int:
        """Physical memory behind the range; counted here, because the driver has no such figure for a range."""
        return sum(stretch.nbytes for stretch in self._backed.values())

    def tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes at an offset, as a tensor with a storage of its own.

        The tensor does not own its memory: using it while the stretch has no pages is a fault of the device.
        """
        # From the address alone. What is public, __cuda_array_interface__, asks the driver about the pointer, and
        # the driver knows nothing of one that has no pages yet.
        storage = torch._C._construct_storage_from_data_pointer(self._address(offset), self.device, nbytes)
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)

    def back(self, offset: int, nbytes: int) -> None:
        """Put pages of zeros under a stretch; if anything fails, nothing is left behind."""
        with self._current(), ExitStack() as undo:
            handle = self._create(nbytes)
            undo.callback(self._discard, handle)
            self._map(offset, nbytes, handle, undo)
            # Fresh memory of a device holds what its last user left.
            self.tensor(offset, nbytes).zero_()
            undo.pop_all()
        self._backed[offset] = _Stretch(handle, nbytes)

    def settle(self) -> None:
        """Wait for the device: contents are not final, and pages must not go, while work is in flight."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def release(self, offset: int, nbytes: int) -> None:
        """Wait for the device, unmap the stretches that lie in a range, and return their memory.

        Where another process adopted a stretch, its memory is the device's again once that process released it too.
        """
        inside = [at for at in self._backed if offset <= at < offset + nbytes]
        if not inside:
            return
        self.settle()
        with self._current():
            for at in inside:
                stretch = self._backed.pop(at)
                self._unmap(at, stretch.nbytes)
                self._discard(stretch.handle)

    def touched(self, offset: int, nbytes: int) -> bool:
        """Never: a device faults on an address without pages, so that nothing can have been written there."""
        return False

    def export(self, offset: int) -> int:
        """A POSIX descriptor of the stretch that begins at an offset; pass it on over a socket, then close it.

        It is for these pages: after a release and another backing there is a new one.
        """
        if offset not in self._backed:
            raise RuntimeError(f"exporting the pages at {offset:,}: there are none. Admit the region first.")
        handle, kind = self._backed[offset].handle, self._what.requestedHandleTypes
        answer = self._driver.cuMemExportToShareableHandle(handle, kind, 0)
        return int(self._checked(f"exporting the pages at {offset:,}", answer))

    def adopt(self, offset: int, nbytes: int, descriptor: int) -> None:
        """Put the pages that another process exported under a stretch of this range, with their contents."""
        with self._current(), ExitStack() as undo:
            answer = self._driver.cuMemImportFromShareableHandle(descriptor, self._what.requestedHandleTypes)
            handle = self._checked(f"adopting {nbytes:,} bytes by descriptor {descriptor}", answer)
            undo.callback(self._discard, handle)
            self._map(offset, nbytes, handle, undo)
            undo.pop_all()
        self._backed[offset] = _Stretch(handle, nbytes)

    def close(self) -> None:
        """Return everything, addresses too; tensors over the range must not be used any more. Twice is once."""
        if self._base is None:
            return
        self.release(0, self._nbytes)
        with self._current():
            self._checked("freeing the addresses", self._driver.cuMemAddressFree(self._base, self._nbytes))
        self._base = None

    def _create(self, nbytes: int) -> Any:
        """Physical memory; where there is none, once more after torch gave its cached blocks back."""
        out_of_memory = self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        answer = self._driver.cuMemCreate(nbytes, self._what, 0)
        if answer[0] == out_of_memory and self.device.type == "cuda":
            torch.cuda.empty_cache()
            answer = self._driver.cuMemCreate(nbytes, self._what, 0)
        if answer[0] == out_of_memory:
            free, _ = self._checked("asking for free memory", self._driver.cuMemGetInfo())
            raise OutOfPages(nbytes=nbytes, free_bytes=int(free))
        return self._checked(f"creating {nbytes:,} bytes of device memory", answer)

    def _map(self, offset: int, nbytes: int, handle: Any, undo: ExitStack) -> None:
        """Map a handle and open it to its device; each step is undone should a later one fail."""
        address, driver = self._address(offset), self._driver
        doing = f"mapping {nbytes:,} bytes at {offset:,}"
        self._checked(doing, driver.cuMemMap(address, nbytes, 0, handle, 0))
        undo.callback(self._unmap, offset, nbytes)
        access = driver.CUmemAccessDesc()
        access.location = self._what.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._checked(f"{doing} for access", driver.cuMemSetAccess(address, nbytes, [access], 1))

    def _unmap(self, offset: int, nbytes: int) -> None:
        answer = self._driver.cuMemUnmap(self._address(offset), nbytes)
        self._checked(f"unmapping {nbytes:,} bytes at {offset:,}", answer)

    def _discard(self, handle: Any) -> None:
        self._checked("releasing device memory", self._driver.cuMemRelease(handle))

    def _address(self, offset: int) -> int:
        if self._base is None:
            raise RuntimeError("using an arena's pages: they were closed. Make a new arena.")
        return self._base + offset

    @contextmanager
    def _current(self) -> Generator[None]:
        """The device's context is this thread's; a lane's own thread starts without one."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            yield

    def _checked(self, doing: str, answer: tuple[Any, ...]) -> Any:
        """The value of a driver's answer, or its values; an error is raised with what was being done."""
        error, *values = answer
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(
                f"{doing} on {self.device}: the driver answered {error.name}. What was there before is unchanged; "
                "`python scripts/check_cuda_arena.py` tells which of the driver's functions work here."
            )
        return values[0] if len(values) == 1 else values

    def __repr__(self) -> str:
        return f"CudaPages({self._nbytes} bytes on {self.device}, {self.backed_bytes} backed)"


def _allocation(driver: Any, index: int) -> Any:
    """What every stretch is: memory of one device that can be passed on by a POSIX descriptor."""
    what = driver.CUmemAllocationProp()
    what.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    what.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    what.location.id = index
    what.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return what


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise ImportError(
            "making a CUDA arena: the driver's functions are called through cuda-bindings, which is not installed. "
            "pip install 'rollplex[cuda]'"
        ) from error
    return driver

"""A stand-in for `cuda.bindings.driver`, over host memory: what is mapped is really there, and the rules are kept.

Physical memory is an anonymous file, mapping it is ``mmap`` at a fixed address, and a descriptor is the file's. As on a
device, an address is of use only once it is mapped and opened for access; every misuse is answered with an error.
"""

# Methods have the driver's own names.
# ruff: noqa: N802

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

GRANULARITY = 1 << 16
_FIXED, _NORESERVE = 0x10, 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class CUresult(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_SUPPORTED = 801


OK, INVALID = CUresult.CUDA_SUCCESS, CUresult.CUDA_ERROR_INVALID_VALUE
Answer = tuple[Any, ...]


@dataclass
class FakeDriver:
    """The calls that `CudaPages` makes, on a device of ``capacity`` bytes; ``failing`` names one that does not work."""

    capacity: int = 64 * GRANULARITY
    failing: str = ""
    calls: list[str] = field(default_factory=list)
    reserved: dict[int, int] = field(default_factory=dict)
    mapped: dict[int, tuple[int, int]] = field(default_factory=dict)
    files: dict[int, int] = field(default_factory=dict)
    dirty: bool = True

    CUresult = CUresult
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)

    @staticmethod
    def CUmemAllocationProp() -> SimpleNamespace:
        return SimpleNamespace(type=0, location=SimpleNamespace(type=0, id=-1), requestedHandleTypes=0)

    @staticmethod
    def CUmemAccessDesc() -> SimpleNamespace:
        return SimpleNamespace(location=None, flags=0)

    @property
    def used(self) -> int:
        """Physical memory: of live handles, and of mappings whose handle was released."""
        return sum(os.fstat(f).st_size for f in {*self.files.values(), *(f for f, _ in self.mapped.values())})

    def empty(self) -> bool:
        """Whether nothing was leaked."""
        return not (self.reserved or self.mapped or self.files)

    def cuMemGetAllocationGranularity(self, what: Any, option: int) -> Answer:
        return self._answer("granularity", what.location.type == 1, lambda: GRANULARITY)

    def cuMemAddressReserve(self, size: int, alignment: int, addr: int, flags: int) -> Answer:
        def reserve() -> int:
            address = _map_nothing(None, size + alignment)
            start = -(-address // alignment) * alignment
            self.reserved[start] = size
            return start

        return self._answer("reserve", size > 0 and size % GRANULARITY == 0, reserve)

    def cuMemAddressFree(self, ptr: int, size: int) -> Answer:
        inside = [at for at in self.mapped if ptr <= at < ptr + size]
        return self._answer("free", self.reserved.get(ptr) == size and not inside, lambda: self.reserved.pop(ptr))[:1]

    def cuMemCreate(self, size: int, what: Any, flags: int) -> Answer:
        if self.used + size > self.capacity:
            self.calls.append("create")
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None

        def create() -> int:
            handle = os.memfd_create("fake-device-memory")
            os.ftruncate(handle, size)
            if self.dirty:
                os.pwrite(handle, b"\xaa" * size, 0)
            self.files[handle] = handle
            return handle

        right = size > 0 and size % GRANULARITY == 0 and what.type == 1 and what.requestedHandleTypes == 1
        return self._answer("create", right, create)

    def cuMemRelease(self, handle: int) -> Answer:
        def release() -> None:
            descriptor = self.files.pop(handle)
            if all(descriptor != f for f, _ in self.mapped.values()):
                os.close(descriptor)

        return self._answer("release", handle in self.files, release)[:1]

    def cuMemMap(self, ptr: int, size: int, offset: int, handle: int, flags: int) -> Answer:
        free = all(ptr + size <= at or at + length <= ptr for at, (_, length) in self.mapped.items())
        inside = any(start <= ptr and ptr + size <= start + length for start, length in self.reserved.items())

        def remember() -> None:
            _map(ptr, size, mmap.MAP_SHARED | _FIXED, handle)
            self.mapped[ptr] = (handle, size)

        return self._answer("map", free and inside and handle in self.files and not flags, remember)[:1]

    def cuMemSetAccess(self, ptr: int, size: int, desc: list[Any], count: int) -> Answer:
        right = self.mapped.get(ptr, (0, 0))[1] == size and count == len(desc) and desc[0].flags == 3
        return self._answer("access", right, lambda: _libc.mprotect(ptr, size, mmap.PROT_READ | mmap.PROT_WRITE))[:1]

    def cuMemUnmap(self, ptr: int, size: int) -> Answer:
        def unmap() -> None:
            _map_nothing(ptr, size)
            handle, _ = self.mapped.pop(ptr)
            if handle not in self.files:
                os.close(handle)

        return self._answer("unmap", self.mapped.get(ptr, (0, 0))[1] == size, unmap)[:1]

    def cuMemExportToShareableHandle(self, handle: int, kind: int, flags: int) -> Answer:
        return self._answer("export", handle in self.files and kind == 1, lambda: os.dup(handle))

    def cuMemImportFromShareableHandle(self, descriptor: int, kind: int) -> Answer:
        def adopt() -> int:
            handle = os.dup(descriptor)
            self.files[handle] = handle
            return handle

        return self._answer("import", kind == 1, adopt)

    def cuMemGetInfo(self) -> Answer:
        return OK, self.capacity - self.used, self.capacity

    def _answer(self, name: str, right: bool, work: Any) -> Answer:
        """Note the call, refuse what is wrong or was to fail, and do the rest."""
        self.calls.append(name)
        if name == self.failing:
            return CUresult.CUDA_ERROR_NOT_SUPPORTED, None
        return (OK, work()) if right else (INVALID, None)


def _map(address: int | None, size: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, 0, flags, descriptor, 0)
    assert found not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
    return found


def _map_nothing(address: int | None, size: int) -> int:
    """Addresses without pages."""
    return _map(address, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | (_FIXED if address else 0), -1)

"""Devices, links and clusters as numbers with a source: what the simulator's clock is made of.

Peaks are the vendor's dense ones; how much of them a phase reaches is an efficiency of the cost model, not of a device.
This file knows nothing of models or phases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from rollplex.bounds import AMOUNT, COUNT, POSITIVE, expect


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator (or this machine's processor)."""

    name: str
    """What it is called in tables."""
    flops: float
    """Dense matrix FLOP/s in the training type (BF16; FP32 on a CPU), the vendor's peak or a measured rate."""
    memory_bytes: float
    """Device memory."""
    memory_bytes_per_s: float
    """Bandwidth of the device memory."""
    num_sms: int
    """Streaming multiprocessors (cores, on a CPU)."""
    host_bytes_per_s: float
    """Device to host copies, one way."""
    source: str
    """Where the numbers come from, and their date."""

    def __post_init__(self) -> None:
        expect(
            f"describing the device {self.name!r}",
            vars(self),
            flops=POSITIVE,
            memory_bytes=POSITIVE,
            memory_bytes_per_s=POSITIVE,
            num_sms=COUNT,
            host_bytes_per_s=POSITIVE,
        )

    @property
    def usable_bytes(self) -> float:
        """Memory but for a twentieth, which contexts, communicators and fragments take."""
        return 0.95 * self.memory_bytes


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins devices."""

    name: str
    """What it is called in tables."""
    bytes_per_s: float
    """Bandwidth of one device's port, one way."""
    latency_s: float
    """Time of an empty message, software included."""
    source: str
    """Where the numbers come from, and their date."""

    def __post_init__(self) -> None:
        expect(f"describing the link {self.name!r}", vars(self), bytes_per_s=POSITIVE, latency_s=AMOUNT)


@dataclass(frozen=True, kw_only=True, repr=False)
class Cluster:
    """Nodes of equal devices: a fast link inside a node, a slower one between nodes, perhaps a slow one between sites."""

    device: Device
    """What every node is full of."""
    num_nodes: int
    """Nodes in all."""
    devices_per_node: int
    """Devices in a node."""
    inside: Link
    """Joins devices of one node."""
    between: Link
    """Joins nodes; its bandwidth is one device's share."""
    host_bytes: float = 1.4e12
    """Main memory of a node; as much as ours is an assumption."""

    def __post_init__(self) -> None:
        doing = f"making a cluster of {self.device.name}"
        expect(doing, vars(self), num_nodes=COUNT, devices_per_node=COUNT, host_bytes=POSITIVE)

    @property
    def num_devices(self) -> int:
        """Devices in all.

        >>> cluster("H800", num_nodes=4).num_devices
        32
        """
        return self.num_nodes * self.devices_per_node

    def span(self, num: int) -> Link:
        """The link that limits a group of ``num`` devices packed as tightly as they fit."""
        return self.inside if num <= self.devices_per_node else self.between

    def __repr__(self) -> str:
        return f"Cluster({self.num_devices} x {self.device.name})"


_HOPPER = "NVIDIA H100/H200 data sheets (2023-2024), half of the sparse peak; read second-hand 2026-11"
DEVICES: dict[str, Device] = {
    d.name: d
    for d in (
        Device(
            name="A100",
            flops=312e12,
            memory_bytes=80e9,
            memory_bytes_per_s=2.039e12,
            num_sms=108,
            host_bytes_per_s=25e9,
            source="NVIDIA A100 80GB SXM data sheet (2021); read second-hand 2026-11",
        ),
        Device(
            name="H100",
            flops=989e12,
            memory_bytes=80e9,
            memory_bytes_per_s=3.35e12,
            num_sms=132,
            host_bytes_per_s=50e9,
            source=_HOPPER,
        ),
        Device(
            name="H800",
            flops=989e12,
            memory_bytes=80e9,
            memory_bytes_per_s=3.35e12,
            num_sms=132,
            host_bytes_per_s=50e9,
            source="as H100 with a 400 GB/s NVLink (export variant, 2023); from memory, unverified",
        ),
        Device(
            name="H20",
            flops=148e12,
            memory_bytes=96e9,
            memory_bytes_per_s=4.0e12,
            num_sms=78,
            host_bytes_per_s=50e9,
            source="export variant (2024): 4.0 TB/s and 96 GB read second-hand 2026-11, 78 SMs from the Rollplex paper, "
            "148 TFLOP/s from memory, unverified",
        ),
        Device(
            name="H200",
            flops=989e12,
            memory_bytes=141e9,
            memory_bytes_per_s=4.8e12,
            num_sms=132,
            host_bytes_per_s=50e9,
            source=_HOPPER + "; measured by us on one device: 788 TFLOP/s of matrix product, 4.3 TB/s of copy",
        ),
        Device(
            name="B200",
            flops=2250e12,
            memory_bytes=180e9,
            memory_bytes_per_s=8.0e12,
            num_sms=148,
            host_bytes_per_s=50e9,
            source="NVIDIA DGX B200 data sheet (2024), half of the sparse peak, an eighth of the node's memory; "
            "read second-hand 2026-11",
        ),
    )
}
"""Name -> device."""

_USUAL = "usual achieved latency, an assumption; bandwidth "
LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link(name="NVLink 3", bytes_per_s=300e9, latency_s=8e-6, source=_USUAL + "half of 600 GB/s (A100, 2021)"),
        Link(name="NVLink 4", bytes_per_s=450e9, latency_s=8e-6, source=_USUAL + "half of 900 GB/s (H100, 2023)"),
        Link(name="NVLink H800", bytes_per_s=200e9, latency_s=8e-6, source=_USUAL + "half of 400 GB/s (2023)"),
        Link(name="NVLink 5", bytes_per_s=900e9, latency_s=8e-6, source=_USUAL + "half of 1.8 TB/s (B200, 2024)"),
        Link(name="InfiniBand 400", bytes_per_s=50e9, latency_s=20e-6, source=_USUAL + "400 Gb/s a device"),
        Link(
            name="InfiniBand 400 a node", bytes_per_s=6.25e9, latency_s=20e-6, source=_USUAL + "400 Gb/s for 8 devices"
        ),
        Link(name="Ethernet 25", bytes_per_s=3.1e9, latency_s=50e-6, source=_USUAL + "25 Gb/s"),
        Link(name="Wide area 1", bytes_per_s=125e6, latency_s=30e-3, source=_USUAL + "1 Gb/s across a continent"),
    )
}
"""Name -> link."""

INSIDE = {
    "A100": "NVLink 3",
    "H100": "NVLink 4",
    "H200": "NVLink 4",
    "H20": "NVLink 4",
    "H800": "NVLink H800",
    "B200": "NVLink 5",
}
"""Device -> the link inside its usual node of eight."""


def cluster(
    device: str | Device,
    *,
    num_nodes: int = 1,
    devices_per_node: int = 8,
    between: str | Link = "InfiniBand 400",
    inside: str | Link | None = None,
) -> Cluster:
    """A cluster of a known device in its usual nodes.

    >>> cluster("H800", num_nodes=4)
    Cluster(32 x H800)
    """
    kind = find_device(device)
    if inside is None:
        if kind.name not in INSIDE:
            raise ValueError(f"making a cluster of {kind.name}: nobody said what joins its devices; pass inside=")
        inside = INSIDE[kind.name]
    return Cluster(
        device=kind,
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        inside=find_link(inside),
        between=find_link(between),
    )


@cache
def this_cpu(size: int = 768, repeats: int = 7) -> Device:
    """This machine's processor, measured now: a float32 matrix product and a copy, the best of a few each.

    Measured once a process. It stands for whatever else runs on the machine at this moment too.
    """
    import torch

    from rollplex.machine import Machine, device_name

    a, b = torch.randn(size, size), torch.randn(size, size)
    source, target = torch.randn(2**22), torch.empty(2**22)
    product_s = min(_timed(lambda: torch.mm(a, b)) for _ in range(repeats))
    copy_s = min(_timed(lambda: target.copy_(source)) for _ in range(repeats))
    machine = Machine.here()
    copied = 2 * source.nbytes / copy_s
    return Device(
        name=device_name(torch.device("cpu")),
        flops=2 * size**3 / product_s,
        memory_bytes=float(machine.memory_bytes),
        memory_bytes_per_s=copied,
        num_sms=machine.cores,
        host_bytes_per_s=copied / 2,
        source="measured in this process",
    )


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def find_device(device: str | Device) -> Device:
    """A device of the table by its name, or the one that is given.

    >>> find_device("h800").num_sms
    132
    """
    return device if isinstance(device, Device) else _find(device, DEVICES, "a device")


def find_link(link: str | Link) -> Link:
    """A link of the table by its name, or the one that is given.

    >>> find_link("NVLink 4").bytes_per_s
    450000000000.0
    """
    return link if isinstance(link, Link) else _find(link, LINKS, "a link")


Kind = TypeVar("Kind", Device, Link)


def _find(wanted: str, table: Mapping[str, Kind], what: str) -> Kind:
    for name, found in table.items():
        if str(wanted).casefold() == name.casefold():
            return found
    kind = "Device" if what == "a device" else "Link"
    raise ValueError(
        f"looking for {what} called {wanted!r}: known are {', '.join(table)}. Or pass one of your own, rx.{kind}(...)."
    )

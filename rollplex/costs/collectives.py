"""What moving bytes between devices costs: ring collectives inside and between nodes, and sends between sites.

Bandwidths are one device's port, one way; the cost model's efficiency says how much of it is reached.
"""

from __future__ import annotations

from rollplex.hardware import Cluster, Link


def all_reduce_s(num_bytes: float, num: int, cluster: Cluster, efficiency: float = 1.0, *, apart: int = 1) -> float:
    """Seconds to sum ``num_bytes`` over ``num`` devices; over several nodes it goes in two levels.

    Inside a node: reduce-scatter and all-gather. Between nodes: the same over each device's own port and its share.
    Neighbours are ``apart`` devices from each other, as data-parallel ranks of so many tensor-parallel devices are.

    >>> from rollplex.hardware import cluster
    >>> all_reduce_s(1e9, 1, cluster("H800"))
    0.0
    """
    if num <= 1:
        return 0.0
    inner = min(num, max(cluster.devices_per_node // apart, 1))
    seconds = _ring(num_bytes, inner, cluster.inside, efficiency)
    if num > inner:
        seconds += _ring(num_bytes / inner, -(-num // inner), cluster.between, efficiency)
    return seconds


def all_gather_s(num_bytes: float, num: int, cluster: Cluster, efficiency: float = 1.0) -> float:
    """Seconds until each of ``num`` devices holds all ``num_bytes``, of which each had its share: half an all-reduce."""
    return all_reduce_s(num_bytes, num, cluster, efficiency) / 2


def send_s(num_bytes: float, link: Link, efficiency: float = 1.0) -> float:
    """Seconds to send ``num_bytes`` over one port of a link."""
    return num_bytes / (link.bytes_per_s * efficiency) + link.latency_s


def broadcast_s(
    num_bytes: float, num_sites: int, link: Link, efficiency: float = 1.0, *, pipelined: bool = True
) -> float:
    """Seconds to bring ``num_bytes`` to each of ``num_sites``: pipelined along a chain, or one after another."""
    if num_sites <= 0:
        return 0.0
    once = send_s(num_bytes, link, efficiency)
    return once + (num_sites - 1) * (link.latency_s if pipelined else once)


def _ring(num_bytes: float, num: int, link: Link, efficiency: float) -> float:
    if num <= 1:
        return 0.0
    # A latency for each of the two halves, as switched links and tree algorithms reach; not one for each of the 2(n-1) hops.
    return 2 * (num - 1) / num * num_bytes / (link.bytes_per_s * efficiency) + 2 * link.latency_s

"""Bytes as errors and ledgers write them. It knows no owner."""

from __future__ import annotations


def mebibytes(num_bytes: int) -> str:
    """Bytes in MiB, so that they compare; what is too few for two decimals as a count of bytes.

    >>> mebibytes(3 * 2**20), mebibytes(4096)
    ('3.00 MiB', '4,096 bytes')
    """
    return f"{num_bytes / 2**20:,.2f} MiB" if abs(num_bytes) >= 2**20 // 100 else f"{num_bytes:,} bytes"

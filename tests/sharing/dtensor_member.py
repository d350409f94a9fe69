"""One rank that lets torch's DTensor shard and reshard matrices; importable by name in another process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor, init_device_mesh

PLACEMENTS: dict[str, Placement] = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate()}


class Resharding:
    """A rank of a device mesh of processes."""

    def __init__(self, rank: int, tp: int, meeting: str) -> None:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=tp)
        self.mesh = init_device_mesh("cpu", (tp,))

    def answer(self, word: str, *arguments: Any) -> Any:
        assert word == "reshard"
        return [self._reshard(*case) for case in arguments[0]]

    def _reshard(self, shape: Sequence[int], before: str, after: str) -> torch.Tensor:
        """What this rank holds of a numbered matrix after it went from one placement to another."""
        whole = torch.arange(shape[0] * shape[1]).view(*shape)
        sharded = distribute_tensor(whole, self.mesh, [PLACEMENTS[before]])
        return sharded.redistribute(self.mesh, [PLACEMENTS[after]]).to_local().clone()

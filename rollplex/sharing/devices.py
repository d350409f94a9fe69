"""Devices that a trainer and an engine share: on each, one region with the rollout shard that is both's weights.

A machine without GPUs has as many devices as wanted: each is an arena of host memory, and its training rank is any
process that maps the arena's pages. Which rank shares a device with which shard comes from `rank_map`.
"""

from __future__ import annotations

import copy
from types import TracebackType
from typing import Self

import torch

from rollplex.memory.arena import Arena
from rollplex.memory.pages import HostPages
from rollplex.memory.pool import HostPool
from rollplex.policy import Policy
from rollplex.shapes import ModelShape
from rollplex.sharing.bind import Binding, bind
from rollplex.sharing.checkpoint import collect, fill
from rollplex.sharing.descriptors import VLLM, Descriptor
from rollplex.sharing.house import house, house_tower
from rollplex.sharing.pairing import Pairing, pair
from rollplex.sharing.passing import SharedPages
from rollplex.sharing.plan import rank_map
from rollplex.sharing.ranks import Ranks
from rollplex.sharing.tensor_parallel import TensorParallel, TextShard

SLACK_BYTES = 1 << 16
"""More than rounding a region to pages can take."""


class Devices:
    """A device for each training rank, filled with a policy's weights; its own are only read.

    ``trainer`` lays the trainer's text layers out. Its vision tower is whole on every rank, as the engine has it.

    >>> from rollplex.sharing.descriptors import TorchTrainer
    >>> with Devices(Policy.tiny(), TorchTrainer(), train_tp=2, rollout_tp=1) as devices:
    ...     [binding.stamp.version for binding in devices.bindings], devices.bindings[0].pairing.private
    ([0, 0], ())
    """

    def __init__(self, policy: Policy, trainer: Descriptor, *, train_tp: int, rollout_tp: int) -> None:
        self.shape = ModelShape.from_config(policy.model.module.config)
        self.rollout_tp = rollout_tp
        self.places = rank_map(train_tp, rollout_tp)
        self.pairings = tuple(
            _pairing(self.shape, trainer, (train_tp, p.train_rank), (rollout_tp, p.rollout_shard), policy.model.dtype)
            for p in self.places
        )
        self._arenas: list[Arena] = []
        self._pages: list[SharedPages] = []
        self.bindings: list[Binding] = []
        state = {name: weight.detach() for name, weight in policy.model.module.named_parameters()}
        for pairing in self.pairings:
            pages = HostPages.reserve(pairing.nbytes + SLACK_BYTES)
            arena = Arena(pages, pages.nbytes, HostPool(0))
            region = arena.region("actor.weights", pairing.nbytes)
            binding = bind(pairing, region.bytes)
            fill(pairing.engine, binding.engine, state)
            binding.stamp.close(policy.version)
            self._arenas.append(arena)
            self._pages.append(SharedPages.of(region, pages.descriptor))
            self.bindings.append(binding)

    def pages(self, rank: int) -> SharedPages:
        """The region of a device, to be passed to the process of its training rank."""
        return self._pages[rank]

    def replica(self, index: int) -> list[int]:
        """Devices that together hold one rollout engine, in the order of its shards."""
        return [place.train_rank for place in self.places if place.rollout_replica == index]

    @property
    def num_replicas(self) -> int:
        """Rollout engines."""
        return len(self.places) // self.rollout_tp

    def weights(self, replica: int, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A copy of all parameters as one rollout engine's devices hold them, in the shapes of ``like``."""
        held = [(self.pairings[r].engine, self.bindings[r].engine) for r in self.replica(replica)]
        return collect(held, {name: tensor.shape for name, tensor in like.items()})

    def scorer(self, replica: int, policy: Policy) -> TensorParallel:
        """One rollout engine's forward over its devices' regions, all shards in this process; no byte is copied.

        ``policy`` lends its configuration and rotary angles.
        """
        ranks, model = self.replica(replica), copy.deepcopy(policy).model
        house_tower(model, self.bindings[ranks[0]])
        shards = [
            TextShard.of(
                self.bindings[rank].engine, self.shape.text, tp=self.rollout_tp, rank=shard, eps=model.text.norm.eps
            )
            for shard, rank in enumerate(ranks)
        ]
        return TensorParallel(shards=tuple(shards), ranks=Ranks(), model=model)

    def policy(self, rank: int, like: Policy) -> Policy:
        """A policy that lives in a device's region, where the whole model is on one: its engine reads what is there."""
        if self.rollout_tp != 1:
            raise ValueError(
                f"reading device {rank} as a whole policy: it has one shard of {self.rollout_tp}. Use scorer(), which "
                "runs over all shards, or a rollout TP of 1."
            )
        made, binding = copy.deepcopy(like), self.bindings[rank]
        house(made.model, binding, keep_values=False)
        made.version = binding.stamp.version
        return made

    def close(self) -> None:
        """Give all regions back; tensors over them must not be used any more."""
        for arena in self._arenas:
            arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Devices({len(self.places)}, of which {self.num_replicas} rollout engines of TP {self.rollout_tp})"


def _pairing(
    shape: ModelShape, trainer: Descriptor, train: tuple[int, int], rollout: tuple[int, int], dtype: torch.dtype
) -> Pairing:
    engine = VLLM()
    tower = engine.layouts(shape, *rollout, "vision")
    text = engine.layouts(shape, *rollout, "language")
    return pair((*tower, *trainer.layouts(shape, *train, "language")), (*tower, *text), dtype=dtype)


def whole(policy: Policy) -> TensorParallel:
    """A policy's own weights as the only shard of a group of one: the forward that scorers are compared with."""
    model = policy.model
    shape = ModelShape.from_config(model.module.config).text
    shard = TextShard.of(model.leaves, shape, tp=1, rank=0, eps=model.text.norm.eps)
    return TensorParallel(shards=(shard,), ranks=Ranks(), model=model)

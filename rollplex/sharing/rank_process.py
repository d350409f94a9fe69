"""What a process of a rehearsal does: be one training rank over the pages that it was given.

It knows what `rollplex.sharing.rehearsal` asks. How weights are trained and moved is elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForImageTextToText, PreTrainedConfig

from rollplex.losses import GRPO
from rollplex.model.model import Model
from rollplex.prompts import PromptBatch
from rollplex.shapes import ModelShape
from rollplex.sharing.bind import bind
from rollplex.sharing.checkpoint import fill
from rollplex.sharing.exchange import Exchange, transfers
from rollplex.sharing.layout import Layout
from rollplex.sharing.pairing import Pairing
from rollplex.sharing.passing import SharedPages
from rollplex.sharing.trainer import TensorParallelTrainer, Updated
from rollplex.step import Rewards, Rollout


@dataclass(frozen=True, kw_only=True)
class Post:
    """Where a training rank stands."""

    rank: int
    """Its number."""
    pairings: tuple[Pairing, ...]
    """Of every rank, in order."""
    pages: SharedPages
    """Its own device's region, and no other's."""
    config: PreTrainedConfig
    """Of the model."""
    dtype: torch.dtype
    """Of the weights."""
    meeting: str
    """File that the ranks find each other by."""
    lr: float
    """Learning rate."""
    timeout_s: float
    """Longest wait for another rank."""


class RankProcess:
    """One training rank."""

    def __init__(self, post: Post) -> None:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
        dist.init_process_group(
            "gloo",
            init_method=f"file://{post.meeting}",
            rank=post.rank,
            world_size=len(post.pairings),
            timeout=timedelta(seconds=post.timeout_s),
        )
        assert dist.group.WORLD is not None
        self.post = post
        self.binding = bind(post.pairings[post.rank], post.pages.map())
        empty: Any = AutoModelForImageTextToText.from_config(post.config)
        self.trainer = TensorParallelTrainer(
            self.binding,
            Model.of(empty.to(post.dtype)),
            ModelShape.from_config(post.config).text,
            Exchange(self.binding, transfers(post.pairings), post.rank),
            rank=post.rank,
            tp=len(post.pairings),
            group=dist.group.WORLD,
            lr=post.lr,
        )

    def answer(self, word: str, *arguments: Any) -> Any:
        """``load``, ``corners``, ``write corners``, ``step`` or ``weights``."""
        match word:
            case "load":
                return self._load(*arguments)
            case "corners":
                return {name: float(_corner(t)) for name, t in self.binding.trainer.items()}
            case "write corners":
                return self._write_corners(*arguments)
            case "step":
                return self._step(*arguments)
            case "weights":
                return {layout.tensor: self._matrix(layout) for layout in self.binding.pairing.train}
            case _:
                known = "load, corners, write corners, step and weights"
                raise ValueError(f"asking a training rank for {word!r}: it knows {known}")

    def _load(self, state: dict[str, torch.Tensor]) -> int:
        """Fill what is not in the region; the rest is there already. Returns the numbers filled."""
        private = self.binding.pairing.private
        fill(private, self.binding.trainer, state)
        return sum(layout.num_elements for layout in private)

    @torch.no_grad()
    def _write_corners(self, values: list[dict[str, float]]) -> None:
        for name, value in values[self.post.rank].items():
            _corner(self.binding.trainer[name]).fill_(value)

    def _matrix(self, layout: Layout) -> torch.Tensor:
        """A copy of a tensor of the trainer's; blocks become one matrix again."""
        return self.binding.trainer[layout.tensor].detach().reshape(layout.rows, layout.columns)

    def _step(self, prompts: PromptBatch, rollout: Rollout, rewards: Rewards) -> Updated:
        return self.trainer.step(prompts, rollout, rewards, GRPO())


def _corner(tensor: torch.Tensor) -> torch.Tensor:
    """The first number of a tensor, in place."""
    return tensor[(0,) * tensor.dim()]

"""Steps and traces made by hand, small enough to read, for the tests of views and logging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch
from PIL import Image, ImageDraw

from rollplex.prompts import Prompt, PromptBatch
from rollplex.sampling import Sampling
from rollplex.step import RewardGroup, Rewards, Rollout, RolloutGroup, Step, SuffixStats, UpdateStats
from rollplex.steps import Steps
from rollplex.trace import MemorySample, Tick, Trace

if TYPE_CHECKING:
    from rollplex.run import Run


def prompt(text: str = "Which digit is largest?", *, num_images: int = 1, **columns: object) -> Prompt:
    images = [_digit(str(i + 3)) for i in range(num_images)]
    content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": text}]
    empty = torch.zeros(0, 3, dtype=torch.int64)
    return Prompt(
        row={"images": images, **columns},
        messages=({"role": "user", "content": content},),
        text_ids=torch.arange(10),
        input_ids=torch.arange(10),
        positions=torch.zeros(3, 10, dtype=torch.int64),
        next_position=10,
        pixel_values=torch.zeros(0, 4),
        image_grid_thw=empty,
        pixel_values_videos=torch.zeros(0, 4),
        video_grid_thw=empty,
        second_per_grid_ts=(),
    )


def step(
    index: int = 0, *, scores: Sequence[Sequence[float]] = ((1.0, 0.0), (0.0, 0.0)), text: str = "It is 4."
) -> Step:
    """A finished step: one prompt a row of ``scores``; response i of a group has i + 1 tokens, the last one is cut."""
    groups = [_group(p, len(row), text) for p, row in enumerate(scores)]
    rewards = [
        RewardGroup(prompt=p, values=(values := torch.tensor(row, dtype=torch.float64)), by_function={"exact": values})
        for p, row in enumerate(scores)
    ]
    return Step(
        index=index,
        seed=0,
        version=index,
        prompts=PromptBatch(prompts=tuple(prompt() for _ in scores), step=index),
        rollout=Rollout(groups=tuple(groups), version=index, step=index, seed=0, sampling=Sampling()),
        rewards=Rewards(groups=tuple(rewards), step=index),
        suffix=suffix(index, scores),
        update=UpdateStats(version=index + 1, step=index, grad_norm=0.5, learning_rate=1e-4, clipped=False),
    )


def suffix(index: int, scores: Sequence[Sequence[float]], *, loss: float = 0.25) -> SuffixStats:
    return SuffixStats(
        version=index,
        step=index,
        loss=loss,
        policy_loss=0.2,
        kl=0.01,
        entropy=1.5,
        clip_ratio=0.125,
        advantages=tuple(torch.tensor(row).nan_to_num() - 0.5 for row in scores),
        logprobs=tuple(torch.zeros(len(row), len(row)) for row in scores),
        mismatch_mean=1e-6,
        mismatch_max=1e-5,
        num_tokens=6,
        groups_without_signal=1,
    )


def trace(*indices: int, schedule: str = "Rollplex", num_tokens: int = 12) -> Trace:
    """Steps that overlap as on a device: prefixes beside decoding, then suffix and update. 2 s a step."""
    made = Trace(device="NVIDIA H200")
    for index in indices:
        at = 2.0 * index
        made.schedules[index] = schedule
        for i in range(num_tokens):
            start, end = at + i / num_tokens, at + (i + 1) / num_tokens
            made.ticks.append(Tick(index, "P1", "rollout", "decode", f"token {i}", start, end))
        made.ticks += [
            Tick(index, "P1", "train", "prefix(reference)", "prompt 0", at + 0.1, at + 0.4),
            Tick(index, "P1", "train", "prefix(policy)", "prompt 0", at + 0.4, at + 0.9),
            Tick(index, "P2", "train", "reward", "group 0", at + 1.0, at + 1.05),
            Tick(index, "P2", "train", "suffix", "microbatch 0", at + 1.05, at + 1.7),
            Tick(index, "P3", "train", "update", "chunk 0", at + 1.7, at + 1.9),
        ]
        for when, kv, boundary in ((0.0, 1, 0), (0.5, 3, 2), (1.0, 0, 4), (1.8, 0, 0)):
            owners = {"policy.weights": 8 * 2**20, "rollout.kv": kv * 2**20, "policy.boundary": boundary * 2**20}
            made.samples.append(MemorySample(index, at + when, owners))
    return made


def turns(index: int = 0) -> Trace:
    """Two lanes that one processor serves in turn: a token, a prompt, a token, a prompt."""
    made = Trace(device="cpu (2 cores)", schedules={index: "Rollplex"})
    for i in range(4):
        made.ticks.append(Tick(index, "P1", "rollout", "decode", f"token {i}", 0.2 * i, 0.2 * i + 0.1))
        made.ticks.append(Tick(index, "P1", "train", "prefix(policy)", f"prompt {i}", 0.2 * i + 0.1, 0.2 * i + 0.2))
    return made


@dataclass
class FakeRun:
    """Yields steps and notes whether its loop was ended."""

    made: Sequence[Step]
    trace: Trace = field(default_factory=Trace)
    ended: bool = False

    def steps(self) -> Steps:
        run = cast("Run", SimpleNamespace(trace=self.trace, schedule=SimpleNamespace(name="Rollplex")))
        return Steps(run=run, num=len(self.made), iterable=self._go())

    def _go(self) -> Iterator[Step]:
        try:
            yield from self.made
        finally:
            self.ended = True


def _group(index: int, size: int, text: str) -> RolloutGroup:
    return RolloutGroup(
        prompt=index,
        tokens=torch.zeros(size, size, dtype=torch.int64),
        lengths=torch.arange(1, size + 1),
        logprobs=torch.zeros(size, size),
        finished=torch.arange(size) < size - 1,
        texts=(text,) * size,
        version=0,
        sampling=Sampling(),
    )


def _digit(text: str) -> Image.Image:
    image = Image.new("RGB", (56, 56))
    ImageDraw.Draw(image).text((22, 18), text, fill=(255, 255, 255))
    return image

"""A group of three responses to one question, and reward functions that a reader can check by eye."""

import asyncio
from collections.abc import Callable
from typing import Any

import torch

from rollplex.prompts import Prompt
from rollplex.sampling import Sampling
from rollplex.step import RolloutGroup

QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]


def prompt_of(num_images: int = 0, **row: Any) -> Prompt:
    row = {"prompt": QUESTION, **row}
    blocks = [{"type": "image", "image": "picture"}] * num_images + [{"type": "text", "text": "What is 1 + 1?"}]
    empty = torch.zeros(0, dtype=torch.int64)
    return Prompt(
        row=row,
        messages=({"role": "user", "content": blocks},),
        text_ids=empty,
        input_ids=empty,
        positions=empty.reshape(0, 0),
        next_position=0,
        pixel_values=torch.zeros(0, 0),
        image_grid_thw=torch.ones(num_images, 3, dtype=torch.int64),
        pixel_values_videos=torch.zeros(0, 0),
        video_grid_thw=torch.zeros(0, 3, dtype=torch.int64),
        second_per_grid_ts=(),
    )


def group_of(*texts: str, lengths: list[int] | None = None) -> RolloutGroup:
    lengths = [len(t) for t in texts] if lengths is None else lengths
    shape = (len(texts), max(lengths))
    return RolloutGroup(
        prompt=3,
        tokens=torch.arange(shape[0] * shape[1]).reshape(shape),
        lengths=torch.tensor(lengths),
        logprobs=torch.zeros(shape),
        finished=torch.ones(shape[0], dtype=torch.bool),
        texts=texts,
        version=0,
        sampling=Sampling(),
    )


GROUP = group_of("2", "two", "11")
PROMPT = prompt_of(answer="2")


def right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(c[0]["content"] == a) for c, a in zip(completions, answer, strict=True)]


def returning(value: Any, name: str = "returning") -> Callable[..., Any]:
    def function(completions: list[Any], **_: Any) -> Any:
        return value

    function.__name__ = name
    return function


async def slow_right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    await asyncio.sleep(0.001)
    return right(completions, answer)

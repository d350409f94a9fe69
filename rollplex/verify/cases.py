"""Small batches of every kind of prompt, and made-up responses to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy
import torch
from PIL import Image

from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.sampling import Sampling
from rollplex.step import RewardGroup, Rewards, Rollout, RolloutGroup

CASES = ("one image", "several images of different sizes", "video", "text only", "mixed")


def prompts(policy: Policy, case: str, *, seed: int = 0) -> PromptBatch:
    """Two or three prompts of one kind."""
    random = numpy.random.default_rng(seed)
    rows = {
        "one image": lambda: [_row(random, [(56, 84)], "sum ?"), _row(random, [(84, 56)], "largest digit ?")],
        "several images of different sizes": lambda: [
            _row(random, [(56, 56), (140, 84), (28, 112)], "sum ?"),
            _row(random, [(112, 168), (56, 28)], "how many 3 ?"),
        ],
        "video": lambda: [_row(random, [], "first ?", (4, 56, 84)), _row(random, [], "last ?", (6, 56, 56))],
        "text only": lambda: [_row(random, [], "sum ?"), _row(random, [], "largest ?")],
        "mixed": lambda: [
            _row(random, [], "sum ?"),
            _row(random, [(84, 84)], "largest ?"),
            _row(random, [(56, 28)], "last ?", (4, 56, 56)),
        ],
    }[case]()
    return policy.ingest.batch(rows, seed=seed)


def _row(
    random: numpy.random.Generator, images: list[tuple[int, int]], text: str, video: tuple[int, int, int] | None = None
) -> dict[str, Any]:
    kinds = ["image"] * len(images) + (["video"] if video else [])
    row: dict[str, Any] = {
        "prompt": [{"role": "user", "content": [*({"type": k} for k in kinds), {"type": "text", "text": text}]}]
    }
    if images:
        row["images"] = [_picture(random, *size) for size in images]
    if video:
        row["fps"] = 2.0  # one second a temporal patch: transformers 5.17 cuts fractions off
        row["videos"] = [[_picture(random, *video[1:]) for _ in range(video[0])]]
    return row


def _picture(random: numpy.random.Generator, height: int, width: int) -> Image.Image:
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=numpy.uint8))


def responses(policy: Policy, batch: PromptBatch, group: int, *, seed: int = 0) -> tuple[Rollout, Rewards]:
    """Random responses of lengths 1 to 9 with random rewards: the split must hold for any.

    The last of every prompt but the first has the padding word inside, whose lookup gets no gradient in transformers.
    """
    words: Any = policy.model.module.get_input_embeddings()
    random = torch.Generator().manual_seed(seed)
    allowed = torch.tensor(
        [i for i in range(policy.model.text.vocabulary_size) if i not in policy.model.placeholder_ids]
    )
    sampling = Sampling(temperature=0.8, banned=policy.model.placeholder_ids)
    groups, rewards = [], []
    for prompt in range(len(batch)):
        lengths = torch.randint(1, 10, (group,), generator=random)
        if prompt == 0:
            lengths[0] = 1
        else:
            lengths[-1] = lengths[-1].clamp(min=2)
        choice = torch.randint(0, len(allowed), (group, int(lengths.max())), generator=random)
        tokens = allowed[choice]
        if prompt:
            tokens[-1, 0] = words.padding_idx
        groups.append(
            RolloutGroup(
                prompt=prompt,
                tokens=tokens,
                lengths=lengths,
                logprobs=torch.zeros(choice.shape, dtype=policy.model.wide),
                finished=torch.ones(group, dtype=torch.bool),
                texts=("",) * group,
                version=policy.version,
                sampling=sampling,
            )
        )
        values = torch.rand(group, generator=random, dtype=torch.float64)
        rewards.append(RewardGroup(prompt=prompt, values=values, by_function={}))
    rollout = Rollout(groups=tuple(groups), version=policy.version, step=0, seed=seed, sampling=sampling)
    return rollout, Rewards(groups=tuple(rewards), step=0)


def counted_from_length(batch: PromptBatch) -> PromptBatch:
    """Sabotage: response positions counted from the prompt's length, as text-only implementations do."""
    return replace(batch, prompts=tuple(replace(p, next_position=p.length) for p in batch))


def all_cases() -> Iterator[str]:
    """Names of the kinds of prompts."""
    yield from CASES

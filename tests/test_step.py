"""The values of a step say what they are in one line, whatever tensors they hold."""

import pytest
import torch

from rollplex.sampling import Sampling
from rollplex.step import RewardGroup, Rewards, Rollout, RolloutGroup, SuffixStats

GROUP = RolloutGroup(
    prompt=3,
    tokens=torch.zeros(2, 50, dtype=torch.int64),
    lengths=torch.tensor([50, 7]),
    logprobs=torch.zeros(2, 50),
    finished=torch.tensor([False, True]),
    texts=("a", "b"),
    version=4,
    sampling=Sampling(),
)
SCORES = RewardGroup(prompt=3, values=torch.tensor([1.0, 0.0]), by_function={"right": torch.tensor([1.0, 0.0])})
VALUES = [
    GROUP,
    Rollout(groups=(GROUP,), version=4, step=0, seed=0, sampling=Sampling()),
    SCORES,
    Rewards(groups=(SCORES,), step=0),
    Rewards(groups=(), step=0),
    SuffixStats(
        version=4,
        step=0,
        loss=0.5,
        policy_loss=0.5,
        kl=0.0,
        entropy=1.0,
        clip_ratio=0.0,
        advantages=(torch.tensor([1.0, -1.0]),),
        logprobs=(torch.zeros(2, 50),),
        mismatch_mean=0.0,
        mismatch_max=0.0,
        num_tokens=57,
        groups_without_signal=0,
    ),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_told_in_one_line(value: object) -> None:
    told = repr(value)
    assert told.startswith(type(value).__name__)
    assert "tensor" not in told
    assert len(told) <= 120


def test_the_line_tells_what_is_in_it() -> None:
    assert repr(GROUP) == "RolloutGroup(prompt 3: 1 of 2 responses ended, 57 tokens, version 4)"
    assert repr(VALUES[3]) == "Rewards(mean 0.5 over 1 groups, step 0)"

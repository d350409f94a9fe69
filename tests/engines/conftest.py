"""A policy with random weights for the tests of a module, and the vLLM engine over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny_policy import tiny
from vllm_rollouts import start

from rollplex.engines.vllm_engine import VllmEngine
from rollplex.policy import Policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny(torch.float32)


@pytest.fixture(scope="module")
def engine(policy: Policy) -> Iterator[VllmEngine]:
    with start(policy) as engine:
        yield engine

"""Whoever maps a region knows which version its weights are, and refuses a mix."""

import pytest
import torch

from rollplex.policy import StaleError
from rollplex.sharing.stamp import Stamp


def test_two_views_of_one_memory_read_one_version() -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    trainer, engine = Stamp(memory), Stamp(memory)
    trainer.close(3)
    assert engine.version == 3
    engine.expect(3)


def test_a_reader_refuses_another_version() -> None:
    stamp = Stamp(torch.zeros(64, dtype=torch.uint8))
    with pytest.raises(StaleError, match="reading weights of version 1: the region has version 0"):
        stamp.expect(1)


def test_a_reader_refuses_weights_that_are_being_written() -> None:
    stamp = Stamp(torch.zeros(64, dtype=torch.uint8))
    stamp.open()
    assert stamp.version == 0
    with pytest.raises(StaleError, match="an update of version 0 is being written"):
        stamp.expect(0)
    stamp.close(1)
    stamp.expect(1)

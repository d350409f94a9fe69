"""An engine in the trainer's process leaves the process as it was."""

from __future__ import annotations

import os
import random
import warnings

import numpy
import pytest
import torch

from rollplex.engines.vllm_process import starting


def test_what_a_start_changes_is_put_back() -> None:
    """Threads, the function that sets them, three generators and the environment; also when the start fails."""
    before = state()
    with pytest.raises(RuntimeError, match="no start"):
        fail_to_start()
    assert state() == before


def state() -> list[object]:
    drawn = numpy.random.get_state()[1].tolist()  # noqa: NPY002
    threads = (torch.get_num_threads(), torch.set_num_threads)
    return [*threads, random.getstate(), torch.random.get_rng_state().tolist(), drawn, dict(os.environ)]


def fail_to_start() -> None:
    """Change everything, warn, and fail."""
    with starting({"VLLM_X": "1"}, {"VLLM_Y": "2"}):
        assert (os.environ["VLLM_X"], os.environ["VLLM_Y"]) == ("1", "2")
        torch.set_num_threads(1)
        torch.set_num_threads = lambda _: None
        random.seed(1)
        numpy.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        os.environ["LEFT_BEHIND"] = "1"
        warnings.warn("vLLM's own", FutureWarning, stacklevel=1)
        raise RuntimeError("no start")


def test_a_person_may_choose_what_is_only_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The level of logging, and nothing that the engine depends on."""
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with starting():
        assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO"
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"

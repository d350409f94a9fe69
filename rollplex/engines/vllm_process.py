"""What vLLM changes in its process, put back: threads, random numbers, the environment, the collector's frozen objects.

An engine in the trainer's own process must leave the trainer as it was. It knows what is changed; it does not know vLLM.
"""

from __future__ import annotations

import gc
import os
import random
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import numpy
import torch

# In-process and eager; one of the two model runners that vLLM has; no cores bound, which would bind the trainer's too.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables that vLLM must see while it starts."""

CHOICES = {"VLLM_LOGGING_LEVEL": "ERROR"}
"""Variables that a person may have set otherwise."""


@contextmanager
def starting(environment: Mapping[str, str] = ENVIRONMENT, choices: Mapping[str, str] = CHOICES) -> Generator[None]:
    """Start vLLM inside: afterwards the process computes as before, with as many threads and the same random numbers.

    >>> before = torch.get_num_threads(), torch.random.get_rng_state()
    >>> with starting():
    ...     _ = torch.manual_seed(7)
    >>> torch.get_num_threads() == before[0], bool((torch.random.get_rng_state() == before[1]).all())
    (True, True)
    """
    variables = dict(os.environ)
    threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    states = random.getstate(), numpy.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    os.environ.update({**choices, **variables, **environment})
    try:
        with warnings.catch_warnings():  # of its imports and its start; they are not ours to act on
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        # A worker on the CPU replaces this function by one that does nothing, for the whole process.
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)
        random.setstate(states[0])
        numpy.random.set_state(states[1])  # noqa: NPY002
        torch.random.set_rng_state(states[2])
        # An engine hides all objects of the process from the collector, which would keep the trainer's garbage too.
        gc.unfreeze()


@contextmanager
def quiet() -> Generator[None]:
    """Warnings of vLLM's own code are not raised in the trainer's loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

"""An arena that stands for a small device."""

from collections.abc import Iterator

import pytest

from rollplex.memory.arena import Arena


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.host(budget_bytes=8 * 2**20)
    yield made
    made.close()

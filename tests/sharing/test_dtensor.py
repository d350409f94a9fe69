"""torch's DTensor, resharding over real processes, leaves on each rank what a layout says."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Literal

import pytest
import torch
from sharing.dtensor_member import Resharding

from rollplex.sharing.checkpoint import fill
from rollplex.sharing.crew import Crew
from rollplex.sharing.layout import Layout, Piece

TP = 2
AXES: dict[str, Literal["rows", "columns"] | None] = {"rows": "rows", "columns": "columns", "whole": None}


@pytest.mark.timeout(900)
def test_resharding_leaves_what_layouts_say(tmp_path: Path) -> None:
    cases = list(product([(4, 6), (8, 2), (2, 10)], AXES, AXES))
    ranks = [(rank, TP, str(tmp_path / "meeting")) for rank in range(TP)]
    with Crew(Resharding, ranks, preload="rollplex.sharing.rank_process", timeout_s=600.0) as crew:
        answers = crew.ask("reshard", cases)
    for rank, locals_ in enumerate(answers):
        for ((rows, columns), _, after), local in zip(cases, locals_, strict=True):
            piece = Piece(name="w", rows=rows, columns=columns)
            layout = Layout(tensor="w", pieces=(piece,), axis=AXES[after], tp=TP, rank=rank)
            wanted = {"w": torch.full((layout.rows, layout.columns), -1)}
            fill([layout], wanted, {"w": torch.arange(rows * columns).view(rows, columns)})
            assert torch.equal(local, wanted["w"])

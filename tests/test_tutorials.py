"""The exercises of every lesson: the solution that it gives is right, and a plausible mistake is not."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).parent.parent
LESSONS = sorted((ROOT / "tutorials").glob("*.ipynb"))


def attempted(lesson: nbformat.NotebookNode) -> tuple[nbformat.NotebookNode, list[int]]:
    """The lesson with each exercise done wrong, checked, done right and checked again; where the checks are."""
    cells, checks = [], []
    pending = None
    for cell in lesson.cells:
        if cell.cell_type != "code":
            continue
        if "exercise" in cell.metadata:
            pending = cell.metadata.exercise
            cells.append(new_code_cell(pending.wrong))
        elif pending is not None:
            cells += [cell, new_code_cell(pending.solution), new_code_cell(cell.source)]
            checks += [len(cells) - 3, len(cells) - 1]
            pending = None
        else:
            cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=lesson.metadata), checks


def said(cell: nbformat.NotebookNode) -> str:
    return cell.outputs[-1].data["text/plain"]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
@pytest.mark.timeout(600)
def test_solutions_are_right_and_mistakes_are_not(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lesson, checks = attempted(nbformat.read(path, as_version=4))
    assert checks
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(lesson, kernel_name="python3", timeout=300, startup_timeout=180, resources=resources).execute()
    verdicts = [said(lesson.cells[place]) for place in checks]
    assert all(text.startswith("Not yet") for text in verdicts[::2]), verdicts
    assert set(verdicts[1::2]) == {"Right."}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_solution_that_is_shown_is_the_one_that_is_tested(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    for place, cell in enumerate(cells):
        if "exercise" in cell.metadata:
            assert cell.metadata.exercise.solution in cells[place + 1].source
            assert cell.source.endswith("= ...")

"""Every notebook runs from top to bottom in a fresh kernel, and what is committed of it is clean and small."""

import os
import re
import statistics
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted(path for folder in ("notebooks", "tutorials") for path in (ROOT / folder).glob("*.ipynb"))
FULL, TINY = 'SCALE = "full"', 'SCALE = "tiny"'
WIDGET = "application/vnd.jupyter.widget-view+json"
"""An output that shows nothing in a closed notebook."""
MAX_BYTES = 1_500_000
MAX_LINES, MAX_MEDIAN_LINES = 15, 5

SHOWS = {
    "00_quickstart": [
        r"engine shares the policy's bytes:\s+True",
        r"reference shares the policy's bytes: False",
        r"\[True, True, True, True\]",
        r"StaleError: using a prefix of weight version",
        r"ScheduleError: checking Hasty, stage P1: update changes policy\.weights while decode uses engine\.weights",
        r"'\.wandb'",
        r"model\.safetensors",
        r"<svg",
        r"data:image/png;base64",
    ],
    "03_memory": [
        r"unattributed",
        r"rollout KV \(engine\.kv\) were on the device after the last use, tick 'end' of decode",
        r"OutOfDeviceMemory",
        r"policy\.tape does not fit</b>",
        r"<b>perhaps enough by itself</b>",
        r"master weights and Adam moments: where it must be",
        r"In host memory",
    ],
    "04_weight_sharing": [
        r"100\.0% one copy",
        r"down_proj\.weight: replaced: its data lies elsewhere",
        r"seen from both sides, in two processes: (\d+) of \1",
        r"version 1: 0 bytes copied",
    ],
}
"""Notebook -> patterns that its outputs must match."""


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def errors(notebook: nbformat.NotebookNode) -> list[str]:
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return [output.evalue for output in outputs if output.output_type == "error"]


def shown(notebook: nbformat.NotebookNode) -> str:
    """All text of all outputs."""
    texts = []
    for output in (output for cell in code(notebook) for output in cell.outputs):
        texts.append(output.get("text", ""))
        texts += [value for value in output.get("data", {}).values() if isinstance(value, str)]
    return "\n".join(texts)


def scaled_down(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook at the size of a test; one that has no such knob must be small as it is."""
    for cell in code(notebook):
        cell.source = cell.source.replace(FULL, TINY)
        cell.outputs = []
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.timeout(600)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel is another process: it gets what conftest.py set, and the package from this checkout.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    # One thread: on a busy machine two that wait for each other are slower than one.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = scaled_down(read(path))
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=300,
        startup_timeout=180,
        store_widget_state=False,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    assert not errors(notebook)
    text = shown(notebook)
    missing = [pattern for pattern in SHOWS.get(path.stem, []) if not re.search(pattern, text)]
    assert not missing


def test_the_quickstart_has_the_knob_that_makes_it_tiny() -> None:
    sources = [cell.source for cell in code(read(ROOT / "notebooks" / "00_quickstart.ipynb"))]
    assert sum(source.count(FULL) for source in sources) == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_is_clean(path: Path) -> None:
    notebook = read(path)
    assert path.stat().st_size <= MAX_BYTES
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    assert not errors(notebook)
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr" or WIDGET in output.get("data", {})]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_short_and_told(path: Path) -> None:
    cells = read(path).cells
    lines = [len(cell.source.splitlines()) for cell in cells if cell.cell_type == "code"]
    told = [before.cell_type == "markdown" for before, cell in pairwise(cells) if cell.cell_type == "code"]
    assert max(lines) <= MAX_LINES
    assert statistics.median(lines) <= MAX_MEDIAN_LINES
    assert sum(told) >= 0.7 * len(told)


def test_an_error_in_a_notebook_is_seen() -> None:
    cell = nbformat.v4.new_code_cell("1 / 0", outputs=[nbformat.v4.new_output("error", ename="E", evalue="bad")])
    assert errors(nbformat.v4.new_notebook(cells=[cell])) == ["bad"]

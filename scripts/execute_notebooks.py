"""Execute notebooks and save them with their outputs: ``python scripts/execute_notebooks.py notebooks/*.ipynb``.

What is saved must be small and readable where nothing runs: no widget state, no times of execution, one text a stream.
Tests execute notebooks by themselves (tests/test_notebooks.py) and do not need what is saved.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

WIDGET = "application/vnd.jupyter.widget-view+json"


def execute(path: Path) -> None:
    """Run every cell in a fresh kernel, in a folder of its own, and write the outputs into the file."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=1200,
            store_widget_state=False,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # A widget shows nothing once its kernel is gone; these are progress bars that have ended.
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    # The kernel reports the exact Python it ran on, which would differ from machine to machine.
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Execute notebooks and save them with their outputs.")
    parser.add_argument("notebooks", nargs="+", type=Path)
    os.environ.setdefault("WANDB_MODE", "offline")
    for notebook_path in parser.parse_args().notebooks:
        execute(notebook_path)

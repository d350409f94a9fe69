"""The two sides of a comparison, each a fresh process that runs a workload and says how long its steps took.

It knows how a side is started and how it answers. It does not know what a side computes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollplex.bench.workloads import Workload, workload

Answer = dict[str, Any]
"""What a side found: plain values that JSON can hold."""


def serve(answer: Callable[[Workload, int], Answer], arguments: Sequence[str] | None = None) -> None:
    """Be a side: read ``WORKLOAD STEPS FILE``, run, write the answer to the file."""
    name, steps, path = sys.argv[1:] if arguments is None else arguments
    Path(path).write_text(json.dumps(answer(workload(name), int(steps))))


def ask(module: str, name: str, *, steps: int, threads: int) -> Answer:
    """Start a side in a process of its own, with so many threads, and wait for its answer."""
    with tempfile.TemporaryDirectory(prefix="rollplex-bench-") as folder:
        path = Path(folder, "answer.json")
        command = [sys.executable, "-m", module, name, str(steps), str(path)]
        done = subprocess.run(
            command, env=_environment(threads), capture_output=True, text=True, cwd=folder, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"running {module} on {name!r}: the process ended with {done.returncode}. The end of what it said:\n"
                f"{done.stderr[-3000:]}"
            )
        return json.loads(path.read_text())


def _environment(threads: int) -> dict[str, str]:
    """Ours, with equal threads for every library, no network, and this package on the path from any folder."""
    root = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": root if path is None else os.pathsep.join((root, path)),
    }

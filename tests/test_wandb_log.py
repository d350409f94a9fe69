"""An offline run is parsed from its file: no server, no network, no fake wandb between the test and what is written."""

import importlib.util
import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from views import fakes
from wandb.proto.wandb_internal_pb2 import Record

from rollplex.log import log
from rollplex.prompts import PromptBatch
from rollplex.wandb_log import WandB


def records(folder: Path) -> Iterator[Record]:
    """The records so far of the one offline run in a folder: LevelDB's log format after a header of 7 bytes."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):
            return
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            yield Record.FromString(whole)
            whole = b""
        if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
            at += 32768 - at % 32768


def history(folder: Path) -> list[dict[str, Any]]:
    rows = [record.history.item for record in records(folder) if record.WhichOneof("record_type") == "history"]
    return [{"//".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offline")
    prompts = PromptBatch(prompts=(fakes.prompt(num_images=3), fakes.prompt(num_images=0)))
    steps = [replace(fakes.step(i, scores=[[1.0, float("nan")], [0.0, 1.0]]), prompts=prompts) for i in range(3)]
    run = fakes.FakeRun(steps, fakes.trace(0, 1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_DATA_DIR", str(folder / "staging"))  # else pictures of tables are staged in the home folder
        list(log(run.steps(), WandB(dir=folder, timeline_every=2, rollouts_every=3, name="a test")))
    # wandb's own process writes the file and may still be doing so when finish() returns.
    until = time.monotonic() + 30
    while time.monotonic() < until and not any(r.WhichOneof("record_type") == "exit" for r in records(folder)):
        time.sleep(0.02)
    return folder


def test_every_step_is_one_row_on_the_step_axis(folder: Path) -> None:
    rows = history(folder)
    assert [row["train/step"] for row in rows] == [0, 1, 2]
    assert all(row["reward"] == pytest.approx(2 / 3) for row in rows)


def test_the_axis_is_declared_for_every_number(folder: Path) -> None:
    metrics = [record.metric for record in records(folder) if record.WhichOneof("record_type") == "metric"]
    assert [m.step_metric for m in metrics if m.glob_name == "*"] == ["train/step"]


def test_timelines_and_rollouts_come_as_often_as_asked(folder: Path) -> None:
    rows = history(folder)
    assert [row.get("timeline//_type") for row in rows] == ["plotly-file", None, "plotly-file"]
    assert [row.get("rollouts//_type") for row in rows] == ["table-file", None, None]
    assert [row.get("rollouts/pictures//count") for row in rows] == [1, None, None]


def test_the_table_has_every_response_with_all_pictures_of_its_prompt(folder: Path) -> None:
    (artifact,) = (r.artifact for r in records(folder) if r.WhichOneof("record_type") == "artifact")
    staged = {file.path: Path(file.local_path) for file in artifact.manifest.contents}
    table = json.loads(staged["rollouts.table.json"].read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["prompt"], row["response"], row["reward"]) for row in rows] == [
        (0, 0, 1.0),
        (0, 1, None),
        (1, 0, 0.0),
        (1, 1, 1.0),
    ]
    assert rows[0]["question"] == "[image] [image] [image] Which digit is largest?"
    assert rows[0]["pictures"]["width"] == 3 * 56 + 2 * 4
    assert rows[0]["pictures"]["path"] in staged
    assert rows[2]["pictures"] is None


def test_without_wandb_one_warning_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.warns(RuntimeWarning, match=r"wandb is not installed.*pip install wandb"):
        sink = WandB()
    run = fakes.FakeRun([fakes.step(i) for i in range(3)], fakes.trace(0, 1, 2))
    assert len(list(log(run.steps(), sink))) == 3  # a further warning would be an error


def test_a_folder_of_offline_runs_is_not_taken_for_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.warns(RuntimeWarning, match="not installed"):
        WandB()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mode is 'on'.*offline, online, disabled"):
        WandB(mode="on")  # type: ignore[arg-type]

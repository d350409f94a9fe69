"""The common JSON envelope: any library's numbers become plain JSON, and nothing else slips through."""

import json
from pathlib import Path

import numpy
import pytest

from rollplex.json_out import dumps, envelope, plain, write


def test_numbers_of_a_library_become_plain() -> None:
    assert plain([numpy.float32(0.5), numpy.int64(3)]) == [0.5, 3]
    assert type(plain(numpy.float64(0.5))) is float


@pytest.mark.parametrize("value", [float("nan"), float("inf"), numpy.float32("nan")])
def test_what_json_cannot_say_becomes_null(value: float) -> None:
    assert plain(value) is None


def test_truth_stays_truth() -> None:
    assert plain(True) is True


def test_an_unknown_type_is_named_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"rows\[1\]\.seen is a set"):
        plain([{}, {"seen": {1}}], where="rows")


def test_the_results_own_seed_wins() -> None:
    assert envelope("demo", {"seed": 7})["seed"] == 7
    assert envelope("demo", {})["seed"] == 0


def test_writing_replaces_a_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("old, and longer than what comes")
    write(file, {"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}
    assert file.read_text() == dumps({"a": 1})

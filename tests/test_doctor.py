"""The doctor: it names every feature once, says why, and imports no optional library to find out."""

import subprocess
import sys

import pytest
from packaging.specifiers import SpecifierSet

from rollplex.doctor import Feature, _distribution, _windows, doctor


def test_it_prints_and_returns_the_same_features(capsys: pytest.CaptureFixture[str]) -> None:
    features = doctor()["features"]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(features)
    assert all(set(feature) == {"name", "available", "why"} for feature in features)
    assert all(
        feature["name"] in line and feature["why"] in line for feature, line in zip(features, lines, strict=True)
    )


def test_names_are_unique_and_reasons_are_given() -> None:
    features = doctor()["features"]
    assert len({feature["name"] for feature in features}) == len(features)
    assert all(feature["why"] for feature in features)


def test_looking_imports_no_optional_library() -> None:
    program = (
        "import sys; from rollplex.doctor import doctor; doctor()\n"
        "print(sorted({'vllm', 'ray', 'trl', 'wandb', 'jupyterlab', 'plotly'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_a_missing_library_says_what_to_do() -> None:
    missing = _distribution("no-such-distribution", {}, "make setup")
    assert missing == Feature("no-such-distribution", False, "not installed; make setup")


def test_a_version_outside_its_window_is_not_available() -> None:
    assert _distribution("packaging", {"packaging": SpecifierSet(">=1")}, "").available
    assert not _distribution("packaging", {"packaging": SpecifierSet("<1")}, "").available


def test_windows_are_those_of_the_installed_metadata() -> None:
    windows = _windows()
    assert windows["torch"].contains("2.11")
    assert not windows["torch"].contains("2.16")
    assert "trl" in windows

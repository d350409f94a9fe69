"""The command line: what is typed reaches the function, what it returns reaches the file, errors read well."""

import inspect
import json
import os
import stat
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest

from rollplex.cli import COMMANDS, Command, Option, main

ECHO = Command("echo", "cli_fakes:echo", "say what was typed", (Option("seeds", int, "a number"),))


def fake(function: str) -> Command:
    return Command("it", f"cli_fakes:{function}", "a fake")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_each_command_calls_a_function_that_takes_its_options(command: Command) -> None:
    module, function = command.calls.split(":")
    parameters = inspect.signature(getattr(import_module(module), function)).parameters
    assert {option.name for option in command.options} <= set(parameters)
    for option in command.options:
        assert parameters[option.name].default is not inspect.Parameter.empty


def test_only_what_was_typed_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["echo", "--json"], commands=[ECHO]) == 0
    assert json.loads(capsys.readouterr().out)["arguments"] == {}
    assert main(["echo", "--seeds", "3", "--json"], commands=[ECHO]) == 0
    assert json.loads(capsys.readouterr().out)["arguments"] == {"seeds": 3}


def test_json_on_stdout_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    main(["echo", "--json"], commands=[ECHO])
    printed = capsys.readouterr()
    assert json.loads(printed.out)
    assert printed.err == "a table\n"


def test_a_file_gets_the_result_in_the_common_envelope(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    assert main(["echo", "--json", str(file)], commands=[ECHO]) == 0
    document = json.loads(file.read_text())
    assert {"command", "version", "machine", "seed", "arguments"} == set(document)
    assert document["command"] == "echo"
    assert {"cores", "memory_bytes", "device"} == set(document["machine"])
    assert list(tmp_path.iterdir()) == [file]


def test_words_nest() -> None:
    assert main(["bench", "peers"], commands=[Command("bench peers", "cli_fakes:echo", "a fake")]) == 0


def test_a_check_that_does_not_pass_is_exit_1() -> None:
    assert main(["it"], commands=[fake("fails")]) == 1


def test_a_refusal_of_the_package_is_one_clean_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["it"], commands=[fake("refuses")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rollplex it: asking for the time of step 3")
    assert "Traceback" not in printed


def test_traceback_shows_all_of_a_refusal() -> None:
    with pytest.raises(ValueError, match="asking for the time of step 3"):
        main(["it", "--traceback"], commands=[fake("refuses")])


def test_an_error_from_elsewhere_is_a_bug_and_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="a bug"):
        main(["it"], commands=[fake("broken")])


def test_an_interrupt_is_exit_130() -> None:
    assert main(["it"], commands=[fake("interrupted")]) == 130


@pytest.mark.parametrize("place", ["missing/result.json", ".", "/proc/result.json", "a" * 300])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["echo", "--json", str(tmp_path / place)], commands=[ECHO]) == 2
    printed = capsys.readouterr()
    assert "writing JSON to" in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["echo", "--sedes", "3"], commands=[ECHO])
    assert stopped.value.code == 2


CLOSED = """
import sys
from rollplex.cli import Command, main
sys.exit(main(sys.argv[1:], commands=[Command("echo", "cli_fakes:echo", "a fake"), Command("long", "cli_fakes:long", "")]))
"""


@pytest.mark.parametrize("words", [["echo"], ["long"], ["--help"], ["echo", "--json"]], ids=" ".join)
def test_a_closed_pipe_ends_a_command_quietly(words: list[str]) -> None:
    """As `| head` leaves it: no message, and the code that a shell gives a command that a closed pipe has ended."""
    reads, writes = os.pipe()
    os.close(reads)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    program = [sys.executable, "-c", CLOSED, *words]
    try:
        done = subprocess.run(program, check=False, stdout=writes, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        os.close(writes)
    assert done.stderr.replace("a table\n", "") == ""  # the table makes way for the JSON
    assert done.returncode in ([0, 141] if words == ["--help"] else [141])  # argparse may take it for printed


def test_a_pipe_that_breaks_elsewhere_is_not_hidden() -> None:
    with pytest.raises(BrokenPipeError):
        main(["it"], commands=[fake("breaks")])


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """A pipe with a name stands for ``/dev/null``, which a command must never put a file in place of."""
    pipe, text = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = Thread(target=lambda: text.append(pipe.read_text()))
    reader.start()
    assert main(["echo", "--json", str(pipe)], commands=[ECHO]) == 0
    reader.join()
    assert json.loads(text[0])["command"] == "echo"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_still_leads_to_the_file_that_was_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    assert main(["echo", "--json", str(link)], commands=[ECHO]) == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["command"] == "echo"

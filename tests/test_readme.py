"""The README and the pages beside it: their code runs, and the files, commands and names they mention exist."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import rollplex
from rollplex.candidate import Plan
from rollplex.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}
SMALL = {
    "steps(50)": "steps(1)",
    "prompts=8": "prompts=2",
    "group=8, max_new_tokens=48": "group=2, max_new_tokens=4",
    "run.compare(rx.Serial())": "run.compare(rx.Serial(), steps=1)",
}
"""What the README's code says -> what a test can afford."""


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [body for told, body in found if told == language]


def named_in_tree(text: str) -> list[str]:
    """Paths that the file tree names: those before the ``#`` of each line."""
    tree = next(block for block in blocks(text, "") if block.startswith("rollplex/\n"))
    lines = tree.splitlines()[1:]
    return [
        ("rollplex/" if line.startswith("  ") else "") + name for line in lines for name in line.split("#")[0].split()
    ]


def exists(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / f"{path}.py").is_file()


def test_the_code_runs() -> None:
    source = "".join(blocks(README, "python"))
    for said, small in SMALL.items():
        assert source.count(said) == 1, f"{said!r} is what a test makes small"
        source = source.replace(said, small)
    names: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), names)
    run = names["run"]
    assert isinstance(run, rollplex.Run)
    assert run.next_index == 1
    assert run.policy.version == 1
    assert run.trace.steps() == [0]


def test_the_planner_page_runs() -> None:
    names: dict[str, object] = {}
    for source in blocks(PAGES["docs/planner.md"], "python"):
        exec(compile(source, "docs/planner.md", "exec"), names)
    assert isinstance(names["made"], Plan)


def test_the_refusal_that_is_quoted_is_what_a_timetable_says() -> None:
    policy = rollplex.Policy.tiny()
    phases = [
        rollplex.Prefix(policy),
        rollplex.Decode(policy.engine()),
        rollplex.Reward(rollplex.tasks.Digits()),
        rollplex.Suffix(policy),
        rollplex.Update(policy),
    ]
    window, last = rollplex.Streamed().timetable(phases).stages
    early = replace(last.slots[0], lane="optimizer", streams=("suffix",))
    hasty = rollplex.Timetable(name="Hasty", stages=(replace(window, slots=(*window.slots, early)),))
    quoted = next(block for block in blocks(README, "") if block.startswith("checking Hasty"))
    with pytest.raises(ValueError, match=re.escape(" ".join(quoted.split()))):
        hasty.check()


def test_the_tree_names_files_that_exist() -> None:
    names = named_in_tree(README)
    assert {"rollplex/step", "rollplex/views/", "rollplex/json_out", "notebooks/"} <= set(names)
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_links_lead_somewhere(page: str) -> None:
    text, here = PAGES[page], (ROOT / page).parent
    paths = re.findall(r"`((?:rollplex|docs|notebooks|scripts|tests|tutorials)/[\w./-]*)`", text)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [path for path in paths if not exists(path)] == []
    assert [link for link in links if not (here / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_targets_exist(page: str) -> None:
    words = {command.words for command in COMMANDS}
    typed = re.findall(r"`rollplex ((?:bench |plan )?[a-z]+)\b(?!\.)", PAGES[page])
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [command for command in typed if command not in words] == []
    assert [target for target in re.findall(r"`make ([a-z]+)", PAGES[page]) if target not in targets] == []


@pytest.mark.parametrize("page", PAGES)
def test_public_names_resolve(page: str) -> None:
    names = set(re.findall(r"\brx\.(\w+)", PAGES[page]))
    assert names <= set(rollplex.__all__)


def test_a_path_that_does_not_exist_is_seen() -> None:
    tree = "```\nrollplex/\n  step  gone  # a phrase\n```\n"
    assert [name for name in named_in_tree(tree) if not exists(name)] == ["rollplex/gone"]

"""`import rollplex`: light, complete, and kind to a name that was mistyped."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import rollplex

HEAVY = {"torch", "torchvision", "transformers", "plotly", "numpy", "pandas", "ipywidgets", "wandb", "sklearn"}


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return set(printed.split())


def test_importing_the_package_imports_no_library() -> None:
    assert modules_after("import rollplex").isdisjoint(HEAVY)


def test_importing_the_command_line_imports_no_library() -> None:
    assert modules_after("import rollplex.cli").isdisjoint(HEAVY)


def test_asking_for_a_name_imports_what_it_needs() -> None:
    assert "torch" in modules_after("import rollplex; rollplex.Step")


@pytest.mark.parametrize("name", rollplex.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(rollplex, name)
    assert name in ("memory", "tasks", "__version__") or not isinstance(value, ModuleType)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(rollplex.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: (node.module or "").removeprefix("rollplex.") for node in imports for alias in node.names}
    assert {seen.pop("memory"), seen.pop("tasks")} == {"rollplex"}
    assert seen == rollplex._HOME


def test_a_function_is_not_hidden_by_the_module_it_lives_in() -> None:
    module = import_module("rollplex.doctor")
    assert rollplex.doctor is module.doctor


def test_dir_lists_the_public_names() -> None:
    assert dir(rollplex) == sorted(rollplex.__all__)


@pytest.mark.parametrize(("typed", "meant"), [("Polisy", "Policy"), ("grpo", "GRPO"), ("rollplex", "Rollplex")])
def test_a_mistyped_name_is_answered_with_what_was_meant(typed: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"Did you mean .*{meant}"):
        getattr(rollplex, typed)


def test_a_name_like_no_other_is_answered_with_where_to_look() -> None:
    with pytest.raises(AttributeError, match="lists the public names"):
        _ = rollplex.zzzzzzzz


def test_a_function_is_not_hidden_by_a_package_of_its_name() -> None:
    import_module("rollplex.sharing.plan")
    assert rollplex.sharing is import_module("rollplex.views.sharing").sharing

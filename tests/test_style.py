"""House rules that a program can hold. Every rule has a control: a snippet that it must object to."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"utils", "util", "common", "core", "helpers", "misc"}

EXTRAS = {"ray", "vllm", "cuda", "pynvml", "trl", "wandb"}
"""Libraries that only one file of the package may import."""

ABOVE_VIEWS = (
    "rollplex/views/",
    "rollplex/bench/",
    "rollplex/demo.py",
    "rollplex/wandb_log.py",
    "rollplex/__init__.py",
)
"""Who may import views at all: themselves, the commands, the log that holds figures, and the public names."""

LAZILY_ABOVE_VIEWS = (
    "rollplex/trace.py",
    "rollplex/compare.py",
    "rollplex/memory/ledger.py",
    "rollplex/memory/explanation.py",
    "rollplex/memory/footprint.py",
)
"""Who may import views inside a function: traces, comparisons, ledgers, explanations and footprints show themselves."""

PROBING_ALLOWED: dict[str, str] = {}
"""File -> why it must probe; empty, and better so."""


@dataclass(frozen=True)
class Source:
    """One file of Python."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def sources(*folders: str) -> list[Source]:
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return [Source(file.relative_to(ROOT).as_posix(), file.read_text()) for file in files]


PACKAGE = sources("rollplex")
EVERYTHING = [*PACKAGE, *sources("tests", "scripts")]

Functions = (ast.FunctionDef, ast.AsyncFunctionDef)
Rule = Callable[[Source], Iterator[str]]


def files_are_short(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{lines} lines, at most {MAX_FILE_LINES}"


def functions_are_short(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, Functions):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.name}: {lines} lines, at most {MAX_FUNCTION_LINES}"


def modules_say_what_they_know(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield "no module docstring"


def public_things_have_docstrings(source: Source) -> Iterator[str]:
    """Functions and classes of a module, and methods of its public classes."""
    owners: list[ast.Module | ast.ClassDef] = [source.tree]
    for owner in owners:
        for node in owner.body:
            if isinstance(node, (*Functions, ast.ClassDef)) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    yield f"{node.name}: no docstring"
                if isinstance(node, ast.ClassDef):
                    owners.append(node)


def values_say_what_each_field_is(source: Source) -> Iterator[str]:
    """A docstring under every field of a frozen, keyword-only dataclass: what crosses a phase boundary."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and any(is_value(decorator) for decorator in node.decorator_list):
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and not is_text(after):
                    yield f"{node.name}.{ast.unparse(field.target)}: no docstring under the field"


def is_value(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return text.startswith("dataclass(") and "frozen=True" in text and "kw_only=True" in text


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def nothing_is_global(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"


def nothing_is_probed(source: Source) -> Iterator[str]:
    """`hasattr`, and `getattr` with a fallback, ask whether a thing was declared; declare it."""
    if source.path in PROBING_ALLOWED:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name, num = node.func.id, len(node.args)
            if name == "hasattr" or (name == "getattr" and num == 3):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def views_are_seen_from_above(source: Source) -> Iterator[str]:
    if source.path.startswith(ABOVE_VIEWS):
        return
    at_top = {node.lineno for node in source.tree.body}
    for line, module in imported(source):
        allowed = source.path in LAZILY_ABOVE_VIEWS and line not in at_top
        if module.startswith("rollplex.views") and not allowed:
            yield f"line {line}: imports {module}"


def files_are_named_for_a_noun(source: Source) -> Iterator[str]:
    vague = VAGUE_NAMES & {part.removesuffix(".py") for part in source.path.split("/")}
    if vague:
        yield f"named {', '.join(vague)}"


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """Line and name of every module that a file imports, inside functions too."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.path}: relative import"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def importers(files: list[Source]) -> dict[str, set[str]]:
    """Extra -> the files that import it."""
    found: dict[str, set[str]] = {extra: set() for extra in EXTRAS}
    for source in files:
        for _, module in imported(source):
            if (top := module.partition(".")[0]) in EXTRAS:
                found[top].add(source.path)
    return found


LONG_FUNCTION = "def f():\n" + "    pass\n" * MAX_FUNCTION_LINES
RULES: list[tuple[Rule, list[Source], str, str]] = [
    # rule, the files it holds for, a path and a text that it must object to
    (files_are_short, EVERYTHING, "rollplex/a.py", "\n" * (MAX_FILE_LINES + 1)),
    (functions_are_short, EVERYTHING, "rollplex/a.py", LONG_FUNCTION),
    (files_are_named_for_a_noun, EVERYTHING, "rollplex/utils.py", ""),
    (nothing_is_global, EVERYTHING, "rollplex/a.py", "def f():\n    global x\n    x = 1\n"),
    (modules_say_what_they_know, PACKAGE, "rollplex/a.py", "x = 1\n"),
    (public_things_have_docstrings, PACKAGE, "rollplex/a.py", "class A:\n    'Doc.'\n    def f(self): ...\n"),
    (nothing_is_probed, PACKAGE, "rollplex/a.py", "x = getattr(y, 'z', None)\n"),
    (nothing_is_probed, PACKAGE, "rollplex/a.py", "x = hasattr(y, 'z')\n"),
    (views_are_seen_from_above, PACKAGE, "rollplex/run.py", "def f():\n    from rollplex.views import report\n"),
    (views_are_seen_from_above, PACKAGE, "rollplex/trace.py", "from rollplex.views import report\n"),
    (
        values_say_what_each_field_is,
        PACKAGE,
        "rollplex/a.py",
        "@dataclass(frozen=True, kw_only=True)\nclass A:\n    x: int\n    y: int\n    'Doc.'\n",
    ),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, *_ in RULES), ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    files = next(files for each, files, *_ in RULES if each is rule)
    assert files, "a rule over no files holds nothing"
    objections = [f"{source.path}: {objection}" for source in files for objection in rule(source)]
    assert not objections, "\n".join(objections)


@pytest.mark.parametrize(("rule", "path", "text"), [(r, p, t) for r, _, p, t in RULES])
def test_rule_objects_to_its_control(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


def test_each_extra_is_imported_in_one_file() -> None:
    spread = {extra: sorted(files) for extra, files in importers(PACKAGE).items() if len(files) > 1}
    assert not spread


def test_an_extra_imported_in_two_files_is_seen() -> None:
    lazy = Source("rollplex/a.py", "def f():\n    import ray.util\n")
    eager = Source("rollplex/b.py", "from ray import remote\n")
    assert importers([lazy, eager])["ray"] == {"rollplex/a.py", "rollplex/b.py"}


def test_a_trace_may_offer_its_figures_lazily() -> None:
    lazy = Source("rollplex/trace.py", "def f():\n    from rollplex.views.timeline import timeline\n")
    assert not list(views_are_seen_from_above(lazy))

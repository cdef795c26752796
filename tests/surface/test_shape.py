"""The shape of the source, measured: sizes, and where time and chance come in."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "interlock"
FILES = sorted(PACKAGE.rglob("*.py"))
LINES = 350
FUNCTION = 40

LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

CHANCE = {
    "time.time", "time.time_ns", "time.sleep", "asyncio.sleep", "datetime.now", "datetime.utcnow", "datetime.today", "uuid.uuid1", "uuid.uuid4",
}
ALLOWED = {
    "clock.py": {"datetime.now"},
    "ids.py": {"time.time_ns"},
    "waits.py": {"time.sleep", "asyncio.sleep"},
    # A deadlock, and a file that another writes, are tried again in place, jittered.
    "stores/again.py": {"random", "random.uniform", "time.sleep"},
    "stores/sqlite/file.py": {"random", "random.uniform", "time.sleep"},
    # Chance comes into a worker here, and only here.
    "worker/desk.py": {"random", "random.random"},
    # A turn of the event loop, and its own pulse: neither is a wait for anything.
    "worker/report.py": {"asyncio.sleep"},
    "boot.py": {"asyncio.sleep"},
}


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function with its length, docstring left out."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
            docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring


def uses(path: Path) -> set[str]:
    """The clocks, waits and dice that a file reaches for, as `module.name`."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            found.add(f"{node.value.attr}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {each for each in found if each in CHANCE or each == "random" or each.startswith("random.")}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_are_short(path: Path) -> None:
    """One screen or a few: under 350 lines."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert (lines >= LINES) == (name(path) in LONG_FILES), f"{name(path)} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_functions_are_short(path: Path) -> None:
    """Under 40 lines, docstring left out."""
    long = {function: lines for function, lines in functions(path) if lines >= FUNCTION}
    assert {f"{name(path)}:{function}" for function in long} == {each for each in LONG_FUNCTIONS if each.startswith(f"{name(path)}:")}, long


@pytest.mark.parametrize("path", FILES, ids=name)
def test_time_and_chance_are_injected(path: Path) -> None:
    """Clocks are read, waits are waited and dice are thrown in listed places only, so that a test can set them all."""
    assert uses(path) == ALLOWED.get(name(path), set())


def test_allowances_name_files_that_exist() -> None:
    """A place that is gone is no longer listed."""
    assert set(ALLOWED) | set(LONG_FILES) | {each.partition(":")[0] for each in LONG_FUNCTIONS} <= {name(path) for path in FILES}

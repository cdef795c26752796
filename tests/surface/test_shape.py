"""The shape of the source: sizes, names, and where time and randomness enter."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "interlock"
FILES = sorted(PACKAGE.rglob("*.py"))
EVERY = sorted(path for folder in ("src", "apps", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
SQL = sorted(PACKAGE.rglob("*.sql"))
LINES = 350
FUNCTION = 40

LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

CHANCE = {
    "time.time",
    "time.time_ns",
    "time.sleep",
    "asyncio.sleep",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "uuid.uuid1",
    "uuid.uuid4",
}
ALLOWED = {
    "core/clock.py": {"datetime.now"},
    "core/ids.py": {"time.time_ns"},
    "core/sleeper.py": {"time.sleep", "asyncio.sleep"},
    # Deadlocks and a busy file are retried in place, with jitter.
    "store/retry.py": {"random", "random.uniform", "time.sleep"},
    # Randomness enters a worker only here.
    "engine/context.py": {"random", "random.random"},
    # One turn of the event loop, and its heartbeat: neither waits for anything.
    "engine/reporter.py": {"asyncio.sleep"},
    "worker/assembly.py": {"asyncio.sleep"},
    "worker/attempt.py": {"asyncio.sleep"},
}


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function with the length of its body, without its docstring."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node.name, (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def uses(path: Path) -> set[str]:
    """Return the clocks, sleeps and random functions that a file uses, as `module.name`."""
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


def all_functions() -> Iterator[tuple[str, int]]:
    """Yield each function of the source as `file:name`, with its length."""
    for path in FILES:
        yield from ((f"{name(path)}:{function}", lines) for function, lines in functions(path))


def test_files_are_short() -> None:
    """Under 350 lines: the source with its SQL, the applications, the benchmarks and all tests."""
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_bytes().splitlines()) for path in [*EVERY, *SQL]}
    assert {path: lines for path, lines in sizes.items() if lines >= LINES and path not in LONG_FILES} == {}


def test_functions_are_short() -> None:
    """The body has under 40 lines, without the docstring."""
    assert {each: lines for each, lines in all_functions() if lines >= FUNCTION and each not in LONG_FUNCTIONS} == {}


def test_time_and_randomness_are_injected() -> None:
    """Clocks, sleeps and random functions are used only in the listed places, so that a test can control them."""
    assert {name(path): used for path in FILES if (used := uses(path))} == ALLOWED


def test_exceptions_list_only_what_is_still_long() -> None:
    """A file or function that is short or deleted must not be listed."""
    long = {each for each, lines in all_functions() if lines >= FUNCTION}
    assert set(LONG_FUNCTIONS) <= long
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_bytes().splitlines()) for path in [*EVERY, *SQL]}
    assert all(sizes.get(path, 0) >= LINES for path in LONG_FILES)


def test_no_file_name_appears_twice() -> None:
    """A file name says what the file is without its folder; the two dialects share names."""
    names = [
        path.name for path in FILES if path.name != "__init__.py" and path.parent.name not in ("sqlite", "postgres")
    ]
    assert sorted(each for each in set(names) if names.count(each) > 1) == []


def test_no_class_name_appears_twice() -> None:
    """Except in the two dialects, which name their parts alike."""
    where: dict[str, set[str]] = {}
    for path in FILES:
        if path.parent.name not in ("sqlite", "postgres"):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where.setdefault(node.name, set()).add(name(path))
    assert {each: files for each, files in where.items() if len(files) > 1} == {}

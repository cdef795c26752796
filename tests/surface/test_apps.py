"""The applications in this repository: they use what everybody may use, keep to the sizes of the source, and their pages are true."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlock
import interlock.testing
from interlock import Lifecycle
from tests.surface.test_shape import FUNCTION, LINES, functions, parsed

ROOT = Path(__file__).parents[2]
APPS = ROOT / "apps"
FILES = sorted(APPS.rglob("*.py"))
SOURCE = [path for path in FILES if "tests" not in path.parts]
PAGES = sorted(APPS.glob("*/README.md"))


def name(path: Path) -> str:
    return path.relative_to(APPS).as_posix()


# ---------------------------------------------------------------- the shape of the code
def engine_names(path: Path) -> Iterator[tuple[str, str]]:
    """What a file takes from the engine: the module, and the name in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "interlock")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").partition(".")[0] == "interlock":
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_there_is_something_to_measure() -> None:
    some = {"librarian/api.py", "librarian/jobs.py", "courier/bot.py", "courier/jobs.py", "studio/api.py", "studio/jobs.py"}
    assert some <= {name(path) for path in SOURCE} < {name(path) for path in FILES}
    assert [("interlock", "App") in engine_names(path) for path in APPS.glob("*/jobs.py")] == [True] * len(PAGES)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_apps_use_public_names_only(path: Path) -> None:
    """What everybody may import; its tests may use the testing kit."""
    public = {"interlock": set(interlock.__all__)} | ({"interlock.testing": set(interlock.testing.__all__)} if path not in SOURCE else {})
    for module, imported in engine_names(path):
        assert imported in public.get(module, ()), f"{name(path)} imports {imported or module} of {module}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_apps_reach_into_no_private_part_of_the_engine(path: Path) -> None:
    """Not by another way either: no import by name, and no other package's private attribute."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"import_module\(\s*f?[\"']interlock|__import__", text)


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_files_of_apps_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines < LINES, f"{name(path)} has {lines} lines"


@pytest.mark.parametrize("path", SOURCE, ids=name)
def test_functions_of_apps_are_short(path: Path) -> None:
    assert {function: lines for function, lines in functions(path) if lines >= FUNCTION} == {}


# ---------------------------------------------------------------- their pages
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")) if "://" not in target]
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_draws_what_the_engine_enforces(page: Path) -> None:
    drawn = Lifecycle.load(page, "drawn")
    assert drawn.arrows
    assert drawn == Lifecycle.load(page.with_name("lifecycle.md"), "drawn")

"""The applications: they use only the public API, keep to the size limits, and their READMEs are correct."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import interlock
import interlock.testing
from interlock import Lifecycle
from tests.surface.test_shape import FUNCTION, functions, parsed

ROOT = Path(__file__).parents[2]
APPS = ROOT / "apps"
FILES = sorted(APPS.rglob("*.py"))
SOURCE = [path for path in FILES if "tests" not in path.parts]
PAGES = sorted(APPS.glob("*/README.md"))


def name(path: Path) -> str:
    return path.relative_to(APPS).as_posix()


# ---------------------------------------------------------------- size and imports of the code
def engine_names(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names that a file imports from Interlock, with their modules."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "interlock")
        elif (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").partition(".")[0] == "interlock"
        ):
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_checks_cover_all_applications() -> None:
    sample = {
        "librarian/api.py",
        "librarian/jobs.py",
        "courier/bot.py",
        "courier/jobs.py",
        "studio/api.py",
        "studio/jobs.py",
    }
    assert sample <= {name(path) for path in SOURCE} < {name(path) for path in FILES}
    assert [("interlock", "App") in engine_names(path) for path in APPS.glob("*/jobs.py")] == [True] * len(PAGES)


def test_apps_use_public_names_only() -> None:
    """Tests may also use the testing kit."""
    public = {"interlock": set(interlock.__all__)}
    testing = public | {"interlock.testing": set(interlock.testing.__all__)}
    for path in FILES:
        known = public if path in SOURCE else testing
        for module, imported in engine_names(path):
            assert imported in known.get(module, ()), f"{name(path)} imports {imported or module} of {module}"


def test_apps_import_no_private_module_dynamically() -> None:
    """A dynamic import would hide the use of a private module."""
    hidden = re.compile(r"import_module\(\s*f?[\"']interlock|__import__")
    assert [name(path) for path in FILES if hidden.search(path.read_text(encoding="utf-8"))] == []


def test_app_functions_are_short() -> None:
    long = {f"{name(path)}:{each}": lines for path in SOURCE for each, lines in functions(path) if lines >= FUNCTION}
    assert long == {}


# ---------------------------------------------------------------- READMEs
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of_a_readme_exist(page: Path) -> None:
    targets = [
        target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")) if "://" not in target
    ]
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_diagram_of_a_readme_is_the_enforced_lifecycle(page: Path) -> None:
    diagram = Lifecycle.load(page, "diagram")
    assert diagram.arrows
    assert diagram == Lifecycle.load(page.with_name("lifecycle.md"), "diagram")

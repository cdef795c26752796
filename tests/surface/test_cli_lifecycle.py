"""The commands that migrate the database and show a lifecycle."""

from pathlib import Path

import pytest

from interlock import Lifecycle
from interlock.core.lifecycle import BUILTIN, builtin
from tests.conftest import Places
from tests.kit import Place
from tests.surface.cli_kit import MODULE, Call, enqueued


@pytest.fixture
def places(empty_places: Places) -> Places:
    """Databases in which nothing is migrated."""
    return empty_places


# ---------------------------------------------------------------- migrate
def test_migrate_lists_its_changes(call: Call, place: Place, here: Path) -> None:
    """What was created and registered; the second time, nothing."""
    (here / "shop.py").write_text(MODULE.format(url=place.url, schema=place.schema))
    first, second = call("migrate", "-A", "shop:app"), call("migrate", "-A", "shop:app")
    assert any("registered lifecycle parcel, version 1" in line for line in first.lines)
    assert first.lines[-2:] == ["lifecycles: parcel (version 1), standard (version 1)", "kinds: greet, send"]
    assert second.lines == ["nothing to change: the database is up to date with the app", *first.lines[-2:]]


def test_migrate_sql_makes_the_same_database(call: Call, place: Place, here: Path) -> None:
    """It prints SQL for another tool, and changes nothing."""
    (here / "shop.py").write_text(MODULE.format(url=place.url, schema=place.schema))
    answer = call("migrate", "-A", "shop:app", "--sql")
    assert answer.code == 0
    assert place.open().registry.is_empty()
    place.raw.script(answer.out)
    assert enqueued(call, "-A", "shop:app", "greet", '{"name": "ann"}')


# ---------------------------------------------------------------- lifecycle
def test_lifecycles_are_listed(call: Call, shop: str) -> None:
    """Built-in lifecycles and those of the app, with their kinds."""
    answer = call("lifecycle")
    assert [line.split()[0] for line in answer.lines] == ["lifecycle", *BUILTIN, "parcel"]
    assert answer.lines[-1].split()[-1] == "send"
    assert {each["name"]: each["kinds"] for each in call("lifecycle", "--json").json} == {
        "standard": ["greet"],
        "state_model": [],
        "task": [],
        "parcel": ["send"],
    }


@pytest.mark.parametrize("name", BUILTIN)
def test_lifecycle_is_printed_as_table_and_diagram(call: Call, name: str) -> None:
    """No app is needed; the diagram parses to the same lifecycle."""
    answer = call("lifecycle", name)
    assert builtin(name).table() in answer.out
    diagram = answer.out.partition("```mermaid\n")[2].partition("```")[0]
    assert Lifecycle.parse(name, diagram) == builtin(name)
    assert Lifecycle.parse(name, call("lifecycle", name, "--json").json["mermaid"]) == builtin(name)


def test_unknown_lifecycle_is_not_found(call: Call) -> None:
    """The message lists the known ones."""
    answer = call("lifecycle", "fantasy")
    assert answer.code == 1
    assert "Known: standard, state_model, task" in answer.sentence


DRAWN = """# Ours
```mermaid
stateDiagram-v2
  [*] --> pending
  pending --> running: a worker comes
  running --> done
  running --> error: oh
{more}```
"""


def test_check_compares_pairs_of_states(call: Call, here: Path) -> None:
    """Labels and text do not count; each difference is named, and the exit code is 1 (protocol 37)."""
    same, drifted = here / "same.md", here / "drifted.md"
    same.write_text(DRAWN.format(more="  running --> pending: back\n"))
    drifted.write_text(DRAWN.format(more="  error --> pending: again\n"))
    assert call("lifecycle", "task", "--check", str(same)).code == 0
    answer = call("lifecycle", "task", "--check", str(drifted))
    assert answer.code == 1
    assert answer.lines == [
        "The document has error --> pending; the lifecycle task does not.",
        "The lifecycle task has running --> pending; the document does not.",
    ]
    allowed = call(
        "lifecycle", "task", "--check", str(drifted), "--allow", "error --> pending", "--allow", "running-->pending"
    )
    assert (allowed.code, allowed.out) == (0, f"{drifted} matches task, except for 2 allowed.\n")


def test_check_takes_the_name_from_the_document(call: Call, here: Path) -> None:
    """From its headings or its file name, if exactly one lifecycle has that name."""
    for name, title in (("ours.md", "# The task of a worker"), ("task.md", "# Ours")):
        (here / name).write_text(DRAWN.format(more="  running --> pending: back\n").replace("# Ours", title))
        assert call("lifecycle", "--check", name).out == f"{name} matches task.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("task", "--check", "nowhere.md"), 1, "nowhere.md cannot be read: No such file"),
        (("task", "--check", "empty.md"), 1, "empty.md has no ```mermaid block"),
        (("task", "--check", "drawn.md", "--allow", "A - B"), 2, "--allow 'A - B' is not a transition"),
        (
            ("--check", "drawn.md"),
            2,
            "--check needs the NAME of the lifecycle: drawn.md names none of standard, state_model, task",
        ),
        (("task", "--allow", "A --> B"), 2, "--allow needs --check FILE.md"),
    ],
)
def test_check_reports_invalid_input(call: Call, here: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    """With one message."""
    (here / "empty.md").write_text("nothing")
    (here / "drawn.md").write_text(DRAWN.format(more=""))
    answer = call("lifecycle", *arguments)
    assert answer.code == code
    assert says in answer.sentence

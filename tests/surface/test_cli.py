"""The command `interlock`: what it prints, where, and how it exits."""

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.surface.cli_kit import Call

COMMANDS = (
    "demo",
    "migrate",
    "worker",
    "lifecycle",
    "enqueue",
    "jobs",
    "show",
    "explain",
    "cancel",
    "redrive",
    "release",
    "status",
    "workers",
    "verify",
    "bench",
    "audit",
    "audit archive",
)
WITH_DATABASE = ("worker", "explain", "redrive", "release", "status", "workers")

pytestmark = pytest.mark.usefixtures("here")


# ---------------------------------------------------------------- help and usage
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help(call: Call, command: str) -> None:
    """`--help` says what it does and which options it has."""
    answer = call(*command.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert f"Usage: interlock{' ' if command else ''}{command}" in answer.out
    assert "Options:" in answer.out


def test_help_names_every_command(call: Call) -> None:
    """Also by its short form, `-h`."""
    answer = call("-h")
    assert all(f"\n  {command} " in answer.out for command in COMMANDS if " " not in command)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in ("demo", "audit")])
def test_every_command_shows_an_example(call: Call, command: str) -> None:
    """The example starts with the command itself."""
    assert f"\n  Example: interlock {command}" in call(*command.split(), "--help").out


def test_help_lists_the_exit_codes(call: Call) -> None:
    """Once, for all commands."""
    assert "Exit codes: 0 for success, 1 for a failure or a found problem, 2 for wrong usage" in " ".join(
        call("--help").out.split()
    )


@pytest.mark.parametrize(
    "arguments", [("fly",), ("jobs", "--fly"), ("show",), ("jobs", "--limit", "0"), ("audit", "archive", "--to", "x")]
)
def test_wrong_usage_exits_with_2(call: Call, arguments: tuple[str, ...]) -> None:
    """Unknown commands, options and values."""
    assert call(*arguments).code == 2


@pytest.mark.parametrize(
    "command", ["", "migrate", "enqueue", "jobs", "show", "cancel", "verify", "audit archive", *WITH_DATABASE]
)
def test_help_says_which_database_is_used(call: Call, command: str) -> None:
    """The order is the same for every command."""
    printed = " ".join(call(*command.split(), "--help").out.split())
    assert "or else the URL of the app, INTERLOCK_DATABASE_URL, DATABASE_URL, or sqlite:///interlock.db." in printed


def test_usage_names_arguments_without_braces(call: Call) -> None:
    """An argument is written as the user types it."""
    assert "Usage: interlock show [OPTIONS] ID\n" in call("show", "-h").out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("arguments", [("lifecycle",), ("lifecycle", "--json"), ("--help",)])
def test_output_that_cannot_be_written_is_reported(here: Path, arguments: tuple[str, ...]) -> None:
    """The exit code is 1."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "interlock", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "interlock: The output could not be written: No space left on device.\n",
    )


def test_python_m_interlock_runs_the_command(here: Path) -> None:
    """Also if scripts are not on the path."""
    done = subprocess.run([sys.executable, "-m", "interlock", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "interlock 0.1.0\n"


# ---------------------------------------------------------------- the app and the database
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shop", "is not the name of an app. Write it as MODULE:APP"),
        (":app", "is not the name of an app"),
        ("nowhere:app", "There is no module nowhere here"),
        ("package.nowhere:app", "There is no module package.nowhere here"),
        ("empty:app", "empty has no app"),
        ("other:app", "is a dict, not an interlock.App"),
        ("needs:app", "needs cannot be imported: it needs no_such_library, which is not installed"),
        ("broken:app", "broken cannot be imported: ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("wrong:app", "wrong cannot be imported: SyntaxError: invalid syntax (wrong.py, line 1)."),
        ("empty.py:app", "Write it without .py, as in -A empty:app"),
        ("bad:app", "bad cannot be imported: LifecycleError"),
        ("ends:app", "-A ends:app cannot be imported: the module exits (code 3)"),
    ],
)
def test_wrong_app_is_reported(call: Call, here: Path, name: str, says: str) -> None:
    """The exit code is 2: the command line is wrong, whatever the cause."""
    (here / "empty.py").write_text("")
    (here / "other.py").write_text("app = {}")
    (here / "needs.py").write_text("import no_such_library")
    (here / "broken.py").write_text("\n1 / 0")
    (here / "wrong.py").write_text("def")
    (here / "bad.py").write_text("from interlock import Lifecycle\nLifecycle('x', transitions=[('A', 'fly', 'B')])")
    (here / "ends.py").write_text("raise SystemExit(3)")
    (here / "package").mkdir()
    answer = call("migrate", "-A", name)
    assert says in answer.err.splitlines()[-1]
    assert answer.code == 2


def test_error_inside_the_app_shows_its_own_frames(call: Call, here: Path) -> None:
    """The frames of the app's code, then the message; no frames of Interlock, and none if the message says it all."""
    (here / "broken.py").write_text("\n1 / 0")
    (here / "outer.py").write_text("import broken")
    (here / "bad.py").write_text("from interlock import Lifecycle\nLifecycle('x', transitions=[('A', 'fly', 'B')])")
    assert len(call("migrate", "-A", "broken:app").sentence) > 0
    lines = call("migrate", "-A", "outer:app").err.splitlines()
    assert [line.partition("line ")[2] for line in lines if "File" in line] == ["1, in <module>", "2, in <module>"]
    assert "ZeroDivisionError: division by zero (broken.py, line 2)" in lines[-1]
    lines = call("migrate", "-A", "bad:app").err.splitlines()
    assert [line for line in lines if "File" in line] == [f'  File "{here / "bad.py"}", line 2, in <module>']


@pytest.mark.parametrize("command", [("migrate",), ("enqueue", "greet"), ("worker",)])
def test_command_without_its_app_is_refused(call: Call, command: tuple[str, ...]) -> None:
    """If no app is named."""
    answer = call(*command)
    assert answer.code == 2
    assert "give -A MODULE:APP, or set INTERLOCK_APP" in answer.sentence


def test_imports_of_the_app_are_loaded(call: Call, here: Path) -> None:
    """Kinds may be defined in other modules."""
    (here / "moved.py").write_text("from interlock import App\napp = App(imports=['tasks'])")
    (here / "tasks.py").write_text("from moved import app\n@app.job()\ndef work(run): ...")
    assert "kinds: work" in call("migrate", "-A", "moved:app").out


@pytest.mark.parametrize(
    "command",
    [
        ("jobs",),
        ("show", "x"),
        ("verify",),
        ("cancel", "x"),
        ("status",),
        ("workers",),
        ("explain", "x"),
        ("redrive", "x"),
        ("release", "x", "--reason", "y"),
        ("audit", "archive", "--before", "1d", "--to", "x"),
    ],
)
def test_reading_creates_no_database(call: Call, here: Path, command: tuple[str, ...]) -> None:
    """No file is created."""
    answer = call(*command)
    assert answer.code == 1
    assert (
        "There are no jobs at sqlite:///interlock.db (no database was named): there is no such file." in answer.sentence
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "lacks"),
    [
        ("no/where.db", "the directory no does not exist"),
        ("new.db", "there is no such file"),
        ("empty.db", "the file is empty"),
        ("others.db", "the file has other tables, but none of Interlock"),
    ],
)
def test_message_says_why_there_are_no_jobs(call: Call, here: Path, file: str, lacks: str) -> None:
    """It names the reason and the command that helps, with the given `-A` and `--database`."""
    (here / "empty.db").touch()
    (here / "moved.py").write_text("from interlock import App\napp = App()")
    with sqlite3.connect(here / "others.db") as db:
        db.execute("CREATE TABLE theirs (id)")
    answer = call("jobs", "-A", "moved:app", "--database", f"sqlite:///{file}")
    assert answer.sentence.startswith(f"There are no jobs at sqlite:///{file}: {lacks}. ")
    assert answer.sentence.endswith(f"interlock migrate -A moved:app --database sqlite:///{file}")


def test_reading_does_not_change_a_foreign_file(call: Call, here: Path) -> None:
    """A file without Interlock's tables does not get them when it is read."""
    (here / "theirs.db").write_bytes(b"")
    assert call("jobs", "--database", "sqlite:///theirs.db").code == 1
    assert (here / "theirs.db").read_bytes() == b""


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root@localhost/x", "starts with 'mysql'"),
        ("jobs.db", "has no scheme"),
        ("postgresql://nobody:secret@127.0.0.1:1/x", "Connection refused. Is the server running? Check --database."),
        (
            "sqlite:///text.db",
            "SQLite says of sqlite:///text.db: file is not a database. It is damaged or not a database",
        ),
        ("sqlite:///.", "SQLite says of sqlite:///.: unable to open"),
    ],
)
def test_wrong_database_is_reported(call: Call, here: Path, url: str, says: str) -> None:
    """Quickly, and without the password."""
    (here / "text.db").write_text("this is no database, whatever it is called")
    began = time.monotonic()
    answer = call("jobs", "--database", url)
    assert answer.code == 1
    assert says in answer.sentence or "cannot be opened" in answer.sentence
    assert "secret" not in answer.err
    assert time.monotonic() - began < 10


def test_database_is_chosen_in_the_documented_order(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--database`, then the app's own URL, then INTERLOCK_DATABASE_URL, DATABASE_URL, interlock.db."""
    (here / "own.py").write_text("from interlock import App\napp = App('sqlite:///own.db')")
    (here / "open.py").write_text("from interlock import App\napp = App()")

    def made(*arguments: str) -> str:
        before = set(here.glob("*.db"))
        assert call("migrate", *arguments).code == 0
        return ", ".join(path.name for path in set(here.glob("*.db")) - before)

    assert made("-A", "open:app") == "interlock.db"
    monkeypatch.setenv("DATABASE_URL", "sqlite:///second.db")
    assert made("-A", "open:app") == "second.db"
    monkeypatch.setenv("INTERLOCK_DATABASE_URL", "sqlite:///first.db")
    assert made("-A", "open:app") == "first.db"
    assert made("-A", "own:app") == "own.db"
    assert made("-A", "own:app", "--database", "sqlite:///given.db") == "given.db"
    assert call("jobs").code == 0, "without an app, the environment's"

"""The command `interlock`, as a person or a script meets it: what it prints, where, and how it exits."""

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interlock import Lifecycle
from interlock.cli import screen
from interlock.cli.audit import ArchiveFile
from interlock.cli.jobs import PAGE
from interlock.job import AuditEntry
from interlock.lifecycle import BUILTIN, builtin
from interlock.stores.postgres.reading import Reading as PostgresReading
from interlock.stores.sqlite.reading import Reading as SqliteReading
from tests.kit import EPOCH, Place
from tests.surface.cli_kit import MODULE, Call, enqueued

COMMANDS = (
    "demo", "migrate", "worker", "lifecycle", "enqueue", "jobs", "show", "explain", "cancel", "redrive", "release", "status", "workers", "verify", "bench",
    "audit", "audit archive",
)
WITH_DATABASE = ("worker", "explain", "redrive", "release", "status", "workers")

pytestmark = pytest.mark.usefixtures("here")


# ---------------------------------------------------------------- being called
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_explains_itself(call: Call, command: str) -> None:
    """--help says what it does and what it takes."""
    answer = call(*command.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert f"Usage: interlock{' ' if command else ''}{command}" in answer.out
    assert "Options:" in answer.out


def test_help_names_every_command(call: Call) -> None:
    """And without anything the command helps, too."""
    answer = call("-h")
    assert all(f"\n  {command} " in answer.out for command in COMMANDS if " " not in command)


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in ("demo", "audit")])
def test_every_command_shows_an_example(call: Call, command: str) -> None:
    """That is written as it is called."""
    assert f"\n  Example: interlock {command}" in call(*command.split(), "--help").out


def test_help_says_how_it_exits(call: Call) -> None:
    """Once, for all commands."""
    assert "exits with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2" in " ".join(call("--help").out.split())


@pytest.mark.parametrize("arguments", [("fly",), ("jobs", "--fly"), ("show",), ("jobs", "--limit", "0"), ("audit", "archive", "--to", "x")])
def test_wrong_usage_exits_with_2(call: Call, arguments: tuple[str, ...]) -> None:
    """What the command line does not offer."""
    assert call(*arguments).code == 2


@pytest.mark.parametrize("command", ["", "migrate", "enqueue", "jobs", "show", "cancel", "verify", "audit archive", *WITH_DATABASE])
def test_help_says_which_database(call: Call, command: str) -> None:
    """Everywhere the same order."""
    printed = " ".join(call(*command.split(), "--help").out.split())
    assert "else the app's own URL, else INTERLOCK_DATABASE_URL, DATABASE_URL, else sqlite:///interlock.db." in printed


def test_usage_has_no_braces(call: Call) -> None:
    """An argument stands there as it is called."""
    assert "Usage: interlock show [OPTIONS] ID\n" in call("show", "-h").out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("arguments", [("lifecycle",), ("lifecycle", "--json"), ("--help",)])
def test_an_answer_that_cannot_be_written_gets_one_sentence(here: Path, arguments: tuple[str, ...]) -> None:
    """And exit code 1."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "interlock", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "interlock: The answer could not be written: No space left on device.\n")


def test_python_m_interlock_is_the_command(here: Path) -> None:
    """Also where scripts are not on the path."""
    done = subprocess.run([sys.executable, "-m", "interlock", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "interlock 0.1.0\n"


# ---------------------------------------------------------------- the app and the database
@pytest.mark.parametrize(("name", "says"), [
    ("shop", "names no app: write it as MODULE:APP"),
    (":app", "names no app"),
    ("nowhere:app", "There is no module nowhere here"),
    ("package.nowhere:app", "There is no module package.nowhere here"),
    ("empty:app", "empty has no app"),
    ("other:app", "is a dict, not an interlock.App"),
    ("needs:app", "needs cannot be imported: it needs no_such_library, which is not installed"),
    ("broken:app", "broken cannot be imported: ZeroDivisionError: division by zero (broken.py, line 2)"),
    ("wrong:app", "wrong cannot be imported: SyntaxError: invalid syntax (wrong.py, line 1)."),
    ("empty.py:app", "write it without .py, as in -A empty:app"),
    ("bad:app", "bad cannot be imported: LifecycleError"),
    ("ends:app", "-A ends:app cannot be imported: the module ends the program (exit code 3)"),
])
def test_a_wrong_app_gets_one_sentence(call: Call, here: Path, name: str, says: str) -> None:
    """And exit code 2: the command line is wrong, whatever is behind it."""
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


def test_an_error_inside_the_app_shows_the_way_there(call: Call, here: Path) -> None:
    """The last lines of its own code, then the sentence; nothing of ours, and no line where the sentence has it all."""
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
def test_what_needs_an_app_says_so(call: Call, command: tuple[str, ...]) -> None:
    """Where no app is named."""
    answer = call(*command)
    assert answer.code == 2
    assert "give -A MODULE:APP, or set INTERLOCK_APP" in answer.sentence


def test_imports_of_the_app_are_loaded(call: Call, here: Path) -> None:
    """Kinds may stand in modules of their own."""
    (here / "moved.py").write_text("from interlock import App\napp = App(imports=['tasks'])")
    (here / "tasks.py").write_text("from moved import app\n@app.job()\ndef work(run): ...")
    assert "kinds: work" in call("migrate", "-A", "moved:app").out


@pytest.mark.parametrize("command", [
    ("jobs",), ("show", "x"), ("verify",), ("cancel", "x"), ("status",), ("workers",), ("explain", "x"), ("redrive", "x"), ("release", "x", "--reason", "y"),
    ("audit", "archive", "--before", "1d", "--to", "x"),
])
def test_looking_makes_no_database(call: Call, here: Path, command: tuple[str, ...]) -> None:
    """Where there is none, there is none after."""
    answer = call(*command)
    assert answer.code == 1
    assert "There are no jobs at sqlite:///interlock.db (no database was named): there is no such file." in answer.sentence
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(("file", "lacks"), [
    ("no/where.db", "there is no directory no, which must be made first"), ("new.db", "there is no such file"), ("empty.db", "the file is empty"),
    ("others.db", "the file has tables of others, and none of Interlock"),
])
def test_why_there_are_no_jobs(call: Call, here: Path, file: str, lacks: str) -> None:
    """Which of the reasons it is, and the command that helps, with the -A and the --database that were given."""
    (here / "empty.db").touch()
    (here / "moved.py").write_text("from interlock import App\napp = App()")
    with sqlite3.connect(here / "others.db") as db:
        db.execute("CREATE TABLE theirs (id)")
    answer = call("jobs", "-A", "moved:app", "--database", f"sqlite:///{file}")
    assert answer.sentence.startswith(f"There are no jobs at sqlite:///{file}: {lacks}. ")
    assert answer.sentence.endswith(f"interlock migrate -A moved:app --database sqlite:///{file}")


def test_looking_leaves_a_strangers_file_alone(call: Call, here: Path) -> None:
    """A file without our tables does not get them by being looked at."""
    (here / "theirs.db").write_bytes(b"")
    assert call("jobs", "--database", "sqlite:///theirs.db").code == 1
    assert (here / "theirs.db").read_bytes() == b""


@pytest.mark.parametrize(("url", "says"), [
    ("mysql://root@localhost/x", "starts with 'mysql'"),
    ("jobs.db", "has no scheme"),
    ("postgresql://nobody:secret@127.0.0.1:1/x", "Connection refused. Is the server running? Check --database."),
    ("sqlite:///text.db", "SQLite says of sqlite:///text.db: file is not a database. It is a file of another kind, or damaged"),
    ("sqlite:///.", "SQLite says of sqlite:///.: unable to open"),
])
def test_a_wrong_database_gets_one_sentence(call: Call, here: Path, url: str, says: str) -> None:
    """Soon, and without the password."""
    (here / "text.db").write_text("this is no database, whatever it is called")
    began = time.monotonic()
    answer = call("jobs", "--database", url)
    assert answer.code == 1
    assert says in answer.sentence or "cannot be opened" in answer.sentence
    assert "secret" not in answer.err
    assert time.monotonic() - began < 10


def test_the_database_is_chosen_in_order(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--database, then the app's own, then INTERLOCK_DATABASE_URL, DATABASE_URL, interlock.db."""
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


# ---------------------------------------------------------------- migrate
def test_migrate_says_what_it_did(call: Call, place: Place, here: Path) -> None:
    """What was created and registered; the second time, nothing."""
    (here / "shop.py").write_text(MODULE.format(url=place.url, schema=place.schema))
    first, second = call("migrate", "-A", "shop:app"), call("migrate", "-A", "shop:app")
    assert any("registered lifecycle parcel, version 1" in line for line in first.lines)
    assert first.lines[-2:] == ["lifecycles: parcel (version 1), standard (version 1)", "kinds: greet, send"]
    assert second.lines == ["nothing to change: this database knows all that the app declares", *first.lines[-2:]]


def test_migrate_sql_makes_the_same_database(call: Call, place: Place, here: Path) -> None:
    """It prints what another tool may run, and changes nothing."""
    (here / "shop.py").write_text(MODULE.format(url=place.url, schema=place.schema))
    answer = call("migrate", "-A", "shop:app", "--sql")
    assert answer.code == 0
    assert place.open().is_empty()
    place.raw.script(answer.out)
    assert enqueued(call, "-A", "shop:app", "greet", '{"name": "ann"}')


# ---------------------------------------------------------------- lifecycle
def test_lifecycles_are_listed(call: Call, shop: str) -> None:
    """Those of the engine and those of the app, with the kinds that follow them."""
    answer = call("lifecycle")
    assert [line.split()[0] for line in answer.lines] == ["lifecycle", *BUILTIN, "parcel"]
    assert answer.lines[-1].split()[-1] == "send"
    assert {each["name"]: each["kinds"] for each in call("lifecycle", "--json").json} == {
        "standard": ["greet"], "state_model": [], "task": [], "parcel": ["send"]}


@pytest.mark.parametrize("name", BUILTIN)
def test_a_lifecycle_prints_as_table_and_diagram(call: Call, name: str) -> None:
    """Without any app; the diagram reads back as the same lifecycle."""
    answer = call("lifecycle", name)
    assert builtin(name).table() in answer.out
    diagram = answer.out.partition("```mermaid\n")[2].partition("```")[0]
    assert Lifecycle.parse(name, diagram) == builtin(name)
    assert Lifecycle.parse(name, call("lifecycle", name, "--json").json["mermaid"]) == builtin(name)


def test_an_unknown_lifecycle_is_not_found(call: Call) -> None:
    """With those that there are."""
    answer = call("lifecycle", "fantasy")
    assert answer.code == 1
    assert "there are standard, state_model, task" in answer.sentence


DRAWN = """# Ours
```mermaid
stateDiagram-v2
  [*] --> pending
  pending --> running: a worker comes
  running --> done
  running --> error: oh
{more}```
"""


def test_check_compares_which_states_are_joined(call: Call, here: Path) -> None:
    """Labels and prose do not count; what differs is named, and the exit code is 1 (protocol 37)."""
    same, drifted = here / "same.md", here / "drifted.md"
    same.write_text(DRAWN.format(more="  running --> pending: back\n"))
    drifted.write_text(DRAWN.format(more="  error --> pending: again\n"))
    assert call("lifecycle", "task", "--check", str(same)).code == 0
    answer = call("lifecycle", "task", "--check", str(drifted))
    assert answer.code == 1
    assert answer.lines == [
        "The document draws error --> pending; the lifecycle task does not.", "The lifecycle task draws running --> pending; the document does not."]
    allowed = call("lifecycle", "task", "--check", str(drifted), "--allow", "error --> pending", "--allow", "running-->pending")
    assert (allowed.code, allowed.out) == (0, f"{drifted} draws task as the code does, except for 2 allowed.\n")


def test_check_takes_the_name_from_the_document(call: Call, here: Path) -> None:
    """From its headings or its own name, if there is one lifecycle of that name."""
    for name, title in (("ours.md", "# The task of a worker"), ("task.md", "# Ours")):
        (here / name).write_text(DRAWN.format(more="  running --> pending: back\n").replace("# Ours", title))
        assert call("lifecycle", "--check", name).out == f"{name} draws task as the code does.\n"


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (("task", "--check", "nowhere.md"), 1, "nowhere.md cannot be read: No such file"),
    (("task", "--check", "empty.md"), 1, "empty.md has no ```mermaid block"),
    (("task", "--check", "drawn.md", "--allow", "A - B"), 2, "--allow 'A - B' is no arrow"),
    (("--check", "drawn.md"), 2, "--check needs the NAME of the lifecycle to compare with: drawn.md names none of standard, state_model, task"),
    (("task", "--allow", "A --> B"), 2, "give --check FILE.md too"),
])
def test_check_says_what_it_cannot_compare(call: Call, here: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    """In one sentence."""
    (here / "empty.md").write_text("nothing")
    (here / "drawn.md").write_text(DRAWN.format(more=""))
    answer = call("lifecycle", *arguments)
    assert answer.code == code
    assert says in answer.sentence


# ---------------------------------------------------------------- jobs
def test_a_job_from_enqueue_to_cancel(call: Call, shop: str) -> None:
    """Stored, listed, shown, cancelled, shown again; verify is content all the while."""
    id = enqueued(call, "greet", '{"name": "ann"}', "--tag", "team=a", "--priority", "3", "--delay", "1h", "--queue", "slow")
    listed = call("jobs").lines
    assert listed[0].split()[:4] == ["id", "kind", "state", "attempt"]
    assert listed[1].split()[:6] == [id, "greet", "PENDING", "0", "3/3", "slow"]
    shown = call("show", id).out
    assert '{"name": "ann", "times": 1}' in shown
    assert "slow, priority 3" in shown
    assert "team=a" in shown
    assert call("cancel", id, "--reason", "no more").out == f"{id} ended as CANCELLED\n"
    assert call("cancel", id).out == f"{id} had already ended as CANCELLED\n"
    shown = call("show", id)
    assert shown.lines[-1].split()[2:] == ["1", "1", "cancel", "PENDING", "CANCELLED", "operator:olga", "no", "more"]
    assert "ABORTED" in shown.out
    assert call("verify").out == "1 job checked: every rule holds.\n"


def test_json_is_whole(call: Call, shop: str) -> None:
    """What is listed or shown for people is there for programs, and more."""
    id = enqueued(call, "greet", '{"name": "ann"}')
    assert [job["id"] for job in call("jobs", "--json").json] == [id]
    shown = call("show", id, "--json").json
    assert shown["job"]["payload"] == {"name": "ann", "times": 1}
    assert [entry["event"] for entry in shown["history"]] == ["enqueue"]
    assert call("verify", "--json").json == {"ok": True, "checked": 1, "violations": [], "left_out": 0}
    assert call("cancel", id, "--by", "ann", "--json").json["state"] == "CANCELLED"
    assert call("enqueue", "greet", '{"name": "bob"}', "--json").json["created"] is True


def test_a_key_that_is_taken_answers_with_its_holder(call: Call, shop: str) -> None:
    """The id alone is on standard output; what else there is to say is not."""
    first = call("enqueue", "greet", '{"name": "ann"}', "--idempotency-key", "k")
    again = call("enqueue", "greet", '{"name": "ann"}', "--idempotency-key", "k")
    assert (first.out, first.err) == (again.out, "")
    assert again.err == "It was there already, under this key.\n"
    other = call("enqueue", "greet", '{"name": "bob"}', "--idempotency-key", "k")
    assert other.code == 1
    assert "belongs to job" in other.sentence


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (("greet", "{"), 2, "The payload is not JSON"),
    (("greet", "[1]"), 2, "The payload is no JSON object"),
    (("greet", f'{{"times": {"9" * 5000}}}'), 2, "The payload is not JSON"),
    (("greet", '{"times": "many"}'), 1, "greet"),
    (("fly", "{}"), 1, "This app has no kind 'fly': it has greet, send"),
    (("greet", '{"name": "x"}', "--delay", "soon"), 2, "--delay 'soon' is no length of time"),
    (("greet", '{"name": "x"}', "--delay", "9" * 400 + "s"), 2, "--delay is longer than a hundred years"),
    (("greet", '{"name": "x"}', "--delay", "90"), 2, "--delay '90' is no length of time: write a number and a unit, s m h d or w"),
    (("greet", '{"name": "x"}', "--delay", "1h", "--ttl", "5m"), 2, "--ttl 5m is not longer than --delay 1h"),
    (("greet", '{"name": "x"}', "--tag", "team"), 2, "--tag 'team' has no value"),
    (("greet", '{"name": "x"}', "--unique-key", "x" * 300), 1, "300 characters"),
    (("send", '{"parcel": 1}', "--ttl", "1d"), 1, "cannot have a ttl"),
])
def test_what_cannot_be_enqueued_is_not_stored(call: Call, shop: str, arguments: tuple[str, ...], code: int, says: str) -> None:
    """One sentence, and no job."""
    answer = call("enqueue", *arguments)
    assert says in answer.sentence
    assert answer.code == code
    assert call("jobs", "--json").json == []


def test_a_payload_may_come_from_standard_input(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is too long for a command line."""
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO('{"name": "ann", "times": 7}'))
    id = enqueued(call, "greet", "-")
    assert call("show", id, "--json").json["job"]["payload"]["times"] == 7


def test_jobs_are_filtered_and_paged(call: Call, shop: str) -> None:
    """Newest first; the hint names the next page."""
    ids = [enqueued(call, "greet", json.dumps({"name": str(n)}), "--tag", f"parity={n % 2}") for n in range(4)]
    enqueued(call, "send", '{"parcel": 1}')
    call("cancel", ids[0])

    def found(*arguments: str) -> list[str]:
        return [job["id"] for job in call("jobs", "--json", *arguments).json]

    assert found("--kind", "greet") == ids[::-1]
    assert found("--state", "CANCELLED") == found("--phase", "failed") == ids[:1]
    assert found("--tag", "parity=1") == [ids[3], ids[1]]
    assert found("--queue", "nowhere") == []
    page = call("jobs", "--kind", "greet", "--limit", "2", "--tag", "parity=1")
    assert page.err.endswith(f" jobs --kind greet --tag parity=1 --limit 2 --after {ids[1]}\n")
    assert found("--kind", "greet", "--after", ids[2]) == [ids[1], ids[0]]
    assert "is none: give pending" in call("jobs", "--phase", "asleep").sentence


def test_jobs_are_listed_without_holding_their_payloads(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table reads no payload, and JSON is written a few jobs at a time: a thousand payloads may be a gigabyte."""
    ids = [enqueued(call, "greet", json.dumps({"name": str(n)})) for n in range(25)]
    asked: list[tuple[int, bool]] = []

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def jobs(self: object, **given: Any) -> Any:
            asked.append((given["limit"], given.get("payloads", True)))
            return read(self, **given)

        return jobs

    for reading in (SqliteReading, PostgresReading):
        monkeypatch.setattr(reading, "jobs", counted(reading.jobs))
    assert ids[-1] in call("jobs", "--limit", "1000").out
    assert asked == [(1000, False)]
    listed = call("jobs", "--json", "--limit", "1000")
    assert [(job["id"], job["payload"]["name"]) for job in listed.json] == [(id, str(n)) for n, id in reversed(list(enumerate(ids)))]
    assert listed.out == json.dumps(listed.json, indent=2) + "\n"
    assert max(limit for limit, payloads in asked if payloads) == PAGE
    assert len(call("jobs", "--json", "--limit", "13").json) == 13


def test_the_next_page_is_of_the_same_database(call: Call, here: Path) -> None:
    """The hint repeats what was given, as a shell reads it."""
    (here / "moved.py").write_text("from interlock import App\napp = App()\n@app.job()\ndef work(run): ...")
    given = ("-A", "moved:app", "--database", "sqlite:///my jobs.db")
    call("migrate", *given)
    id = enqueued(call, "work", *given)
    assert call("jobs", *given, "--limit", "1").err.endswith(f" jobs -A moved:app --database 'sqlite:///my jobs.db' --limit 1 --after {id}\n")


@pytest.mark.parametrize(("arguments", "says"), [
    (("--after", "foo"), "--after 'foo' is not the id of a job"),
    (("--kind", "fly"), "--kind 'fly' is none: this app has greet, send"),
    (("--state", "pending"), "--state 'pending' is none: the lifecycles of this app have PENDING, RUNNING"),
])
def test_a_filter_that_can_find_nothing_is_refused(call: Call, shop: str, arguments: tuple[str, ...], says: str) -> None:
    """A slip is not an empty list."""
    answer = call("jobs", *arguments)
    assert answer.code == 2
    assert says in answer.sentence


def test_who_cancels_is_who_is_logged_in(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the environment does not say it."""
    import pwd

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    id = enqueued(call, "greet", '{"name": "ann"}')
    call("cancel", id)
    assert call("show", id, "--json").json["history"][-1]["actor"] == f"operator:{pwd.getpwuid(os.getuid()).pw_name}"


def test_a_job_that_is_gone_still_has_its_history(call: Call, shop: str, place: Place) -> None:
    """Retention deletes the job, not what happened to it."""
    id = enqueued(call, "greet", '{"name": "ann"}')
    call("cancel", id)
    assert place.open(real_time=True).prune(phase="failed", age=0, limit=10) == 1
    answer = call("show", id)
    assert answer.lines[0] == f"Job {id} is gone: retention deleted it. Its history stays."
    assert "CANCELLED" in answer.lines[-1]
    missing = call("show", "01890000-0000-7000-8000-000000000000")
    assert missing.code == 1
    assert "There is no job" in missing.sentence


def test_a_job_that_cannot_be_cancelled_says_why(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    """It has ended otherwise; it is not there; or its way out runs a function that only the app has (protocol 4)."""
    assert call("cancel", "nonsense").sentence == call("show", "nonsense").sentence
    id = enqueued(call, "send", '{"parcel": 1}')
    if place.schema == "interlock":
        monkeypatch.delenv("INTERLOCK_APP")
        answer = call("cancel", id, "--database", place.url)
        assert answer.code == 1
        assert "with -A module:app" in answer.sentence
        monkeypatch.setenv("INTERLOCK_APP", shop)
    assert call("cancel", id).code == 0


# ---------------------------------------------------------------- what is stored is shown, never obeyed
def test_stored_text_is_not_obeyed(call: Call, shop: str) -> None:
    """No escape sequence, no markup, no turned direction reaches the terminal; in JSON they are numbers."""
    nasty = "\x1b[2J[bold red]x[/] \u202egnp.exe \x9b1m\rover"
    id = enqueued(call, "greet", json.dumps({"name": nasty}), "--unique-key", "key\x1b]0;owned\x07", "--tag", "a=[blink]")
    call("cancel", id, "--reason", nasty, "--by", "eve\x1b[1m")
    for answer in (call("show", id), call("jobs"), call("show", id, "--json"), call("jobs", "--json")):
        assert not {character for character in answer.out if character in "\x1b\x9b\x07\r\u202e\x7f"}
    shown = call("show", id).out
    assert "[bold red]x[/]" in shown
    assert "[blink]" in shown
    assert call("show", id, "--json").json["job"]["payload"]["name"] == nasty


def test_an_errors_sentence_is_not_obeyed(call: Call) -> None:
    """What comes back from a database or a caller is shown the same way."""
    answer = call("lifecycle", "x\x1b[31m[bold]")
    assert "\x1b" not in answer.err
    assert "[bold]" in answer.sentence


def test_ids_are_never_cut_in_a_pipe(call: Call, shop: str) -> None:
    """However long the other columns are."""
    id = enqueued(call, "greet", '{"name": "ann"}', "--queue", "q" * 200)
    assert call("jobs").lines[1].startswith(id)
    assert "q" * 200 in call("jobs").out


def test_plain_keeps_lines_only_where_asked() -> None:
    """One line in a table, several in an error."""
    assert screen.plain("a\nb\tc") == "a b c"
    assert screen.plain("a\nb\x00", lines=True) == "a\nb\ufffd"


# ---------------------------------------------------------------- verify
def test_verify_names_each_violation(call: Call, shop: str, place: Place) -> None:
    """A job moved behind the database's back is found, and the exit code is 1."""
    id = enqueued(call, "greet", '{"name": "ann"}')
    place.raw.disable("jobs_update")
    place.raw("UPDATE {jobs} SET state = 'RUNNING', phase = 'running'")
    answer = call("verify")
    assert answer.code == 1
    assert any(line.startswith(f"projection: job {id}: It is in RUNNING, and its executions say PENDING") for line in answer.lines)
    assert "violations." in answer.lines[-1]
    told = call("verify", "--json")
    assert told.code == 1
    assert {each["job_id"] for each in told.json["violations"]} == {id}


# ---------------------------------------------------------------- audit archive
@pytest.fixture
def gone(call: Call, shop: str, place: Place) -> list[str]:
    """Three jobs that retention has deleted."""
    ids = [enqueued(call, "greet", json.dumps({"name": str(n)})) for n in range(3)]
    for id in ids:
        call("cancel", id, "--reason", "é\n")
    assert place.open(real_time=True).prune(phase="failed", age=0, limit=10) == 3
    return ids


def test_archive_moves_history_into_a_file(call: Call, gone: list[str], here: Path, place: Place) -> None:
    """Every entry is a line; the digest is the file's; the rows are gone, and verify is content."""
    assert call("audit", "archive", "--before", "90", "--to", "a.jsonl").code == 2, "90 what?"
    answer = call("audit", "archive", "--before", "0s", "--to", "a.jsonl")
    content = (here / "a.jsonl").read_bytes()
    assert answer.lines == ["3 jobs, 6 entries", f"{hashlib.sha256(content).hexdigest()}  a.jsonl"]
    entries = [json.loads(line) for line in content.decode().splitlines()]
    assert [(entry["job_id"], entry["event"]) for entry in entries] == [(id, event) for id in gone for event in ("enqueue", "cancel")]
    assert place.raw("SELECT count(*) FROM {audit}") == [(0,)]
    assert place.raw("SELECT count(*) FROM {archived}") == [(3,)]
    assert call("verify").code == 0


def test_archive_never_writes_over_a_file(call: Call, gone: list[str], here: Path, place: Place) -> None:
    """Nor leaves one behind where there is nothing to archive."""
    (here / "a.jsonl").write_text("precious")
    answer = call("audit", "archive", "--before", "0s", "--to", "a.jsonl")
    assert answer.code == 2
    assert "never written over" in answer.sentence
    assert (here / "a.jsonl").read_text() == "precious"
    assert place.raw("SELECT count(*) FROM {audit}") == [(6,)]
    assert "nothing to archive" in call("audit", "archive", "--before", "90d", "--to", "b.jsonl").out
    assert not (here / "b.jsonl").exists()


def test_archive_that_cannot_be_written_drops_nothing(call: Call, gone: list[str], place: Place) -> None:
    """The rows leave only after the file has them."""
    answer = call("audit", "archive", "--before", "0s", "--to", "no/such/folder.jsonl")
    assert answer.code == 1
    assert "still in the database" in answer.sentence
    assert place.raw("SELECT count(*) FROM {audit}") == [(6,)]


def test_a_batch_is_on_the_disk_before_its_rows_go(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`write` returns after fsync; a batch whose transaction is run again takes its own place."""
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_size), real(number)))
    file, entry = ArchiveFile(here / "a.jsonl"), AuditEntry("j", 0, 0, None, "enqueue", None, "PENDING", "app", None, EPOCH)
    file.write([entry])
    size = (here / "a.jsonl").stat().st_size
    assert synced[-1] == size > 0
    file.write([entry])
    file.settle()
    file.write([replace(entry, version=1), replace(entry, version=2)])
    file.settle()
    digest = file.close()
    lines = (here / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["version"] for line in lines] == [0, 1, 2]
    assert (file.entries, digest) == (3, hashlib.sha256((here / "a.jsonl").read_bytes()).hexdigest())

"""Tables on a terminal of 80 columns: no word is broken, and every command accepts a short id."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from interlock.cli import text_table as table
from interlock.cli.text_table import Column
from interlock.core.outcome import Errored, FailedFinally, Held, Outcome
from interlock.store import OpenStore
from interlock.store.types import Heartbeat, Lease, NewJob, WorkerFacts
from tests.contract.kit import claim_rules, make, settle
from tests.kit import Place
from tests.surface.cli_kit import Call
from tests.surface.launcher import Launcher

KIND, QUEUE = "send_quarterly_statement_to_every_subscriber", "statements-and-other-letters"
WAITING, WORKING = "WAITING_FOR_A_FREE_PRINTER", "PRINTING_THE_STATEMENT"
MODULE = f"""
from interlock import App, Lifecycle, SyncRun

app = App({{url!r}}, schema={{schema!r}})
letter = Lifecycle("letter", transitions=[
    ("{WAITING}", "claim", "{WORKING}"), ("{WORKING}", "succeed", "SENT"), ("{WORKING}", "fail", "FAILED"),
    ("{WORKING}", "retry", "{WAITING}"), ("{WORKING}", "lose", "{WAITING}"), ("{WAITING}", "cancel", "CANCELLED"),
    ("{WORKING}", "cancel", "CANCELLED")])


@app.job(lifecycle=letter, kind="{KIND}", queue="{QUEUE}")
def statement(run: SyncRun, name: str) -> str: ...
"""
TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/some/rather/deep/directory/of/the/application/statements.py", line 117, in statement
    printer.print(pages, copies=copies, tray="the one at the bottom that is always empty on a Monday")
ValueError: the printer has no paper, and nobody is there to fill in some more of it"""
COMMANDS = (
    "jobs",
    "show",
    "show --full",
    "jobs --full",
    "status",
    "workers",
    "explain",
    "verify",
    "lifecycle",
    "lifecycle letter",
)


@dataclass
class WorkerContext:
    """The shop's database with five jobs: waiting, running, held, failed and stuck."""

    store: OpenStore
    ids: dict[str, str]

    def settled(self, name: str, outcome: Outcome | None = None, lease: float = 600.0) -> Lease:
        taken = self.taken(name, lease)
        return taken if outcome is None else settle(self.store, taken, outcome)

    def taken(self, name: str, lease: float = 600.0) -> Lease:
        drawn = self.store.registry.lifecycle("letter", 1)
        if name not in self.ids:
            self.ids[name] = self.store.queue.enqueue([letter(self.store, name)])[0].id
        found = self.store.queue.claim(
            "ann-with-a-long-name#1", claim_rules(KIND, lease=lease, lifecycle=drawn), (QUEUE,), 1
        )
        assert [one.job.id for one in found] == [self.ids[name]]
        return found[0]


def letter(store: OpenStore, name: str) -> NewJob:
    made = make(
        "mail",
        lifecycle=store.registry.lifecycle("letter", 1),
        payload=f'{{"name": "{name}"}}',
        tries=2,
        queue=QUEUE,
        priority=9,
    )
    return replace(made, kind=KIND)


@pytest.fixture(autouse=True)
def programs(engine_launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start `interlock` quickly."""
    monkeypatch.setenv("PATH", f"{engine_launcher.path}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def context(place: Place, here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    (here / "shop.py").write_text(MODULE.format(url=place.url, schema=place.schema))
    monkeypatch.setenv("INTERLOCK_APP", "shop:app")
    assert call("migrate").code == 0
    context = WorkerContext(place.open(real_time=True), {})
    monkeypatch.setattr("tests.contract.kit.LIFECYCLES", {"letter": context.store.registry.lifecycle("letter", 1)})
    context.settled("failed", Errored(TRACEBACK, retryable=True, after=0.0))
    context.settled("failed", FailedFinally(TRACEBACK))
    context.settled("held", Held("nobody knows whether 'print' happened at attempt 1: look into the tray"))
    context.settled("stuck", lease=0.001)
    running = context.settled("running")
    context.store.leases.renew([Heartbeat(running.fence, 600.0, '[1200, 4000, "pages printed"]')])
    context.ids["waiting"] = context.store.queue.enqueue([letter(context.store, "waiting")])[0].id
    worker = WorkerFacts(
        "ann-with-a-long-name#1",
        "a-host.with.a.long.name.example",
        4711,
        "Polling",
        100,
        3,
        (KIND, "another_kind"),
        ("default", QUEUE),
    )
    context.store.workers.report(worker)
    return context


def at_terminal(*arguments: str, columns: int = 80) -> tuple[int, str]:
    """Run the command on its own terminal; return its exit code and output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {
        "TERM": "dumb"
    }
    with subprocess.Popen(
        ["interlock", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        got = b""
        try:
            while part := os.read(ours, 65_536):
                got += part
        except OSError:
            pass
        os.close(ours)
    return process.returncode, got.decode().replace("\r\n", "\n")


def words(text: str) -> set[str]:
    return set(text.split())


# ---------------------------------------------------------------- 80 columns
@pytest.mark.parametrize("command", COMMANDS)
def test_no_word_is_broken_at_80_columns(context: WorkerContext, call: Call, command: str) -> None:
    """Each line fits, and each word also appears in a pipe, or is shortened with an ellipsis."""
    name, *options = command.split()
    arguments = [name, *([context.ids["failed"]] if name in ("show", "explain") else []), *options]
    _, shown = at_terminal(*arguments)
    piped, whole = call(*arguments).out, call(*arguments, *(["--full"] if name in ("jobs", "show") else [])).out
    known = (
        words(f"{piped} {whole}")
        | words("left detail due in leased until from to by (version ,")
        | {"another_kind", "default,", QUEUE, "ann-with-a-long-name#1:"}
    )
    broken = {
        word
        for word in words(shown) - known
        if not (word.endswith("…") and any(each.startswith(word[:-1]) for each in known))
        and not any(id.startswith(word) and len(word) >= 13 for id in context.ids.values())
        and not re.fullmatch(r"[\d:.,/()-]+", word)
    }
    assert broken == set()
    assert max(cell_len(line) for line in shown.splitlines()) <= 80


def test_cells_in_a_pipe_are_complete(context: WorkerContext, call: Call) -> None:
    """Of any length, since programs read them."""
    lines = call("jobs").lines
    assert lines[0].split() == ["id", "kind", "state", "attempt", "tries", "left", "queue", "due", "(UTC)", "progress"]
    (running,) = [line.split() for line in lines if line.startswith(context.ids["running"])]
    assert running[:6] == [context.ids["running"], KIND, WORKING, "1", "2/2", QUEUE]
    assert running[-3:] == ["1,200/4,000", "pages", "printed"]


# ---------------------------------------------------------------- contents
def test_attempt_is_one_line_with_the_last_line_of_its_error(context: WorkerContext) -> None:
    """The traceback is shown only with `--full`."""
    _, shown = at_terminal("show", context.ids["failed"][:18])
    attempts = shown.partition("\nexecutions\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in attempts] == ["attempt", "1", "2"]
    assert all("ValueError:" in line for line in attempts[1:])
    assert "Traceback" not in shown
    _, whole = at_terminal("show", context.ids["failed"], "--full")
    assert whole.count("Traceback (most recent call last):") >= 3


def test_long_payload_is_complete_only_with_full(context: WorkerContext) -> None:
    """A terminal gets its beginning."""
    job = letter(context.store, "x" * 5000)
    context.store.queue.enqueue([job])
    assert at_terminal("show", job.id)[1].count("x") < 500
    assert at_terminal("show", job.id, "--full")[1].count("x") >= 5000
    assert at_terminal("jobs", "--full")[1].count("x") >= 5000


def test_progress_is_shown(context: WorkerContext, call: Call) -> None:
    """In the list, for the job, for its attempt, and in `explain`."""
    id = context.ids["running"]
    _, listed = at_terminal("jobs", "--phase", "running", columns=120)
    assert "1,200/4,000" in listed
    shown = call("show", id).out
    assert "progress   1,200/4,000 pages printed" in shown
    assert "progress" in at_terminal("show", id, "--full")[1]
    assert "It has reported 1,200 of 4,000 pages printed." in call("explain", id).out


# ---------------------------------------------------------------- short ids
def short(text: str, id: str) -> str:
    """Return the short id that a terminal shows."""
    (found,) = [word for word in words(text) if len(word) >= 13 and id.startswith(word)]
    return found


def test_every_command_accepts_a_short_id(context: WorkerContext, call: Call) -> None:
    """show, explain, cancel, redrive, release, and `--after`."""
    _, listed = at_terminal("jobs")
    ids = {name: short(listed, id) for name, id in context.ids.items()}
    assert all(13 <= len(each) <= 23 for each in ids.values())
    for command in ("show", "explain"):
        assert call(command, ids["running"], "--json").code == 0
    assert call("release", ids["held"], "--reason", "seen", "--json").json["id"] == context.ids["held"]
    assert call("cancel", ids["waiting"], "--json").json["id"] == context.ids["waiting"]
    (made,) = call("redrive", ids["failed"], context.ids["failed"], "--json").json
    assert made["redrive_of"] == context.ids["failed"]
    after = call("jobs", "--json", "--after", ids["held"]).json
    assert context.ids["held"] > after[0]["id"]


def test_status_shows_short_ids_that_commands_accept(context: WorkerContext, call: Call) -> None:
    """For held, stuck and failed jobs."""
    code, shown = at_terminal("status")
    assert code == 1
    for name in ("held", "stuck", "failed"):
        assert call("explain", short(shown, context.ids[name])).code == 0


@pytest.mark.parametrize(
    "command", [("show",), ("explain",), ("cancel",), ("release", "--reason", "x"), ("jobs", "--after")]
)
def test_ambiguous_prefix_names_its_candidates(context: WorkerContext, call: Call, command: tuple[str, ...]) -> None:
    """With enough of each id to be unambiguous; nothing is changed."""
    prefix = context.ids["waiting"][:6]
    answer = call(command[0], *command[1:], prefix) if "--after" in command else call(command[0], prefix, *command[1:])
    assert answer.code == 2
    assert answer.sentence.startswith(f"{prefix} is ambiguous. These jobs match: ")
    assert f"({KIND}, {WAITING})" in answer.sentence
    assert context.store.inspect.get(context.ids["waiting"]).phase == "pending"


@pytest.mark.parametrize("command", [("show",), ("explain",), ("cancel",), ("redrive",), ("release", "--reason", "x")])
@pytest.mark.parametrize("id", ["ffffffff", "nonsense"])
def test_unknown_prefix_is_reported(context: WorkerContext, call: Call, command: tuple[str, ...], id: str) -> None:
    """The exit code is 1."""
    answer = call(command[0], id, *command[1:])
    assert answer.code == 1
    assert "There is no job" in answer.sentence


def test_pruned_job_is_shown_by_a_prefix(context: WorkerContext, call: Call) -> None:
    """Its history is kept."""
    call("cancel", context.ids["waiting"])
    call("cancel", context.ids["running"])
    assert context.store.retention.prune(phase="failed", age=0.0, limit=10, kinds=[KIND]) >= 1
    assert f"Job {context.ids['waiting']} was deleted by retention" in call("show", context.ids["waiting"][:23]).out


# ---------------------------------------------------------------- tables
def test_spare_columns_are_dropped_before_names_are_shortened() -> None:
    """Ids stay complete, and each row stays on one line."""
    columns = (Column("id", "whole"), Column("kind"), Column("host", spare=True))
    row = ("0123456789", "a_rather_long_kind", "example")
    assert table.lines(columns, [row], None) == [
        "id          kind                host",
        "0123456789  a_rather_long_kind  example",
    ]
    assert table.lines(columns, [row], 32) == ["id          kind", "0123456789  a_rather_long_kind"]
    assert table.lines(columns, [row], 24) == ["id          kind", "0123456789  a_rather_lo…"]
    assert table.lines(columns, [row], 5) == ["id          kind", "0123456789  a_rat…"]


def test_prose_wraps_between_words() -> None:
    """A word that is too long is shortened."""
    assert table.lines(
        [Column("n", "whole"), Column("why", "wrap")], [("1", "it was not there incomprehensibly")], 14
    ) == ["n  why", "1  it was not", "   there", "   incomprehe…"]


def test_wide_characters_count_twice() -> None:
    """As a terminal shows them."""
    (_, line) = table.lines([Column("kind"), Column("id", "whole")], [("印刷印刷印刷印刷", "1")], 13)
    assert (line, cell_len(line)) == ("印刷印刷…  1", 12)

"""Promises about the commands: what they print, how they exit, and that a wrong call is one sentence that changes nothing."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import httpx
import pytest
from rich.cells import cell_len
from sqlalchemy import create_engine, text

from apps.common.database import place
from apps.common.telling import as_json
from apps.common.tests import commands
from apps.common.tests.commands import Call, Said, called
from apps.librarian import main as program
from apps.librarian.desk import Desk
from apps.librarian.following import followed
from apps.librarian.jobs import build
from apps.librarian.library import Progress, Started
from apps.librarian.main import main
from apps.librarian.settings import Settings
from apps.librarian.tests import torrents
from apps.librarian.tests.kit import Branch, hash_of, magnet
from apps.librarian.tests.qbittorrent import BAN_AFTER, FakeQbittorrent

ROOT = Path(__file__).parents[3]
NO_ID = "01900000-0000-7000-8000-000000000000"
PATIENCE = 60.0
once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""
refused = partial(commands.refused, "librarian")


class Nobody:
    """A qBittorrent that must not be asked."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        raise AssertionError(f"qBittorrent was asked to {name}")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str) -> pytest.MonkeyPatch:
    """An empty directory, and settings that name an empty database and nothing else."""
    for name in [name for name in os.environ if name.startswith("LIBRARIAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIBRARIAN_DATABASE_URL", database_url)
    return monkeypatch


@pytest.fixture
def call(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command as a person would."""
    return partial(called, main, capsys)


@pytest.fixture
def library(call: Call) -> Call:
    """The commands on a library with a user, ann, and a book, Emma."""
    for arguments in (("migrate",), ("user", "add", "ann"), ("book", "add", "Emma", "--author", "Jane Austen")):
        assert call(*arguments).code == 0
    return call


def started(said: Said) -> str:
    assert said.code == 0, said.err
    return said.out.split()[0]


# ---------------------------------------------------------------- the library
def test_the_tables_are_made_once(call: Call) -> None:
    assert call("migrate").code == call("migrate").code == 0
    assert call("books").out == "id  title  author  state\n"


def test_a_token_is_printed_once_and_alone(library: Call, database_url: str) -> None:
    said = library("user", "add", "bob")
    token = said.out.removesuffix("\n")
    assert re.fullmatch(r"[\w-]{43}", token)
    assert "bob is user 2" in said.err
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert token not in str(connection.execute(text("SELECT * FROM users")).all())
    engine.dispose()


def test_books_are_listed_for_people_and_for_programs(library: Call) -> None:
    assert library("books").out.splitlines()[1].split() == ["1", "Emma", "Jane", "Austen", "Archive"]
    assert json.loads(library("books", "--json").out) == [{"id": 1, "title": "Emma", "author": "Jane Austen", "state": "Archive"}]


def test_users_are_listed_without_their_tokens(library: Call) -> None:
    library("user", "add", "bob")
    assert library("users").out == "id  name\n1   ann\n2   bob\n"
    assert json.loads(library("users", "--json").out) == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}]


@once
def test_nothing_is_made_by_looking(call: Call, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("LIBRARIAN_DATABASE_URL", "sqlite:///none.db")
    for arguments in (("list",), ("books",), ("show", NO_ID), ("start", 1, "text", magnet(1)), ("user", "add", "ann"), ("run",), ("serve",)):
        refused(call(*arguments), 1, "`python -m apps.librarian migrate`")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- downloads
def test_a_download_is_started_found_again_shown_and_canceled(library: Call) -> None:
    first = library("start", 1, "text", magnet(1))
    id = started(first)
    assert first.out == f"{id} is queued\n"
    assert library("start", 1, "text", magnet(1), "--user", "ann").out == f"{id} was active already: queued\n"
    assert library("list").out.splitlines()[1].split() == [id, "queued", "ann", "Emma", "text"]
    assert [each["id"] for each in json.loads(library("list", "--json").out)] == [id]
    shown = dict(line.split(maxsplit=1) for line in library("show", id.upper()).out.splitlines())
    assert (shown["status"], shown["source"], shown["user_id"]) == ("queued", magnet(1), "1")
    assert json.loads(library("show", id, "--json").out)["media_type"] == "text"
    assert library("cancel", id).out == f"{id} is canceled.\n"
    refused(library("cancel", id), 1, "nothing left to cancel")


def test_a_torrent_is_read_from_its_file(library: Call, tmp_path: Path) -> None:
    (tmp_path / "night.torrent").write_bytes(torrents.v1())
    id = started(library("start", 1, "audio", "night.torrent"))
    assert json.loads(library("show", id, "--json").out)["source"].startswith("torrent:")


def test_a_user_is_meant_by_name_or_by_id(library: Call) -> None:
    library("user", "add", "bob")
    refused(library("start", 1, "text", magnet(1)), 2, "1 (ann), 2 (bob)")
    assert json.loads(library("list", "--json").out) == []
    for given, user in (("ann", 1), ("2", 2)):
        id = started(library("start", 1, "text", magnet(1), "--user", given))
        assert json.loads(library("show", id, "--json").out)["user_id"] == user


@pytest.mark.parametrize(("arguments", "code", "word"), [
    (("start", 1, "video", magnet(1)), 2, "text, audio"),
    (("start", 1, "text", "magnet:?dn=emma"), 2, "hash"),
    (("start", 1, "text", "nowhere.torrent"), 2, "No such file"),
    (("start", 1, "text", "."), 2, "directory"),
    (("start", 1, "text", "\0"), 2, "no path"),
    (("start", 1, "text", "/dev/zero"), 2, ""),
    (("start", "emma", "text", magnet(1)), 2, "'emma' is no book's id: `books` lists the ids"),
    (("start", "1.0", "text", magnet(1)), 2, "`books`"),
    (("start", "9" * 5000, "text", magnet(1)), 1, "no book"),
    (("start", 99, "text", magnet(1)), 1, "no book 99"),
    (("start", 10**30, "text", magnet(1)), 1, "no book"),
    (("start", 1, "text", magnet(1), "--user", "eve"), 1, "no user eve"),
    (("start", 1, "text", magnet(1), "--user", "7"), 1, "no user 7"),
    (("show", "nonsense"), 2, "`list`"),
    (("show", NO_ID[:7]), 2, "first 8 characters"),
    (("show", "%" * 8), 2, "`list`"),
    (("show", NO_ID[:8]), 1, "no download 01900000"),
    (("show", NO_ID), 1, "`list`"),
    (("cancel", NO_ID), 1, "`list`"),
    (("follow", NO_ID), 1, "`list`"),
    (("user", "add", ""), 2, "name"),
    (("user", "add", "ann"), 1, "There is a user ann already"),
    (("book", "add", "a\x1b[2Jb"), 2, "title"),
    (("serve", "--http", "nowhere"), 2, "HOST:PORT"),
    (("serve", "--http", "127.0.0.1:99999"), 2, "HOST:PORT"),
    (("serve", "--http", "192.0.2.1:8099"), 1, "192.0.2.1:8099"),
])
def test_a_wrong_call_is_one_sentence_and_changes_nothing(library: Call, arguments: tuple[object, ...], code: int, word: str) -> None:
    refused(library(*arguments), code, word)
    assert json.loads(library("list", "--json").out) == []
    assert len(json.loads(library("books", "--json").out)) == len(json.loads(library("users", "--json").out)) == 1


@once
@pytest.mark.parametrize(("name", "value", "code", "word"), [
    ("DATABASE_URL", "mysql://x", 2, "SQLite"),
    ("DATABASE_URL", "postgresql://host:port/x", 2, "LIBRARIAN_DATABASE_URL"),
    ("DATABASE_URL", "postgresql://ann:secret@127.0.0.1:1/x", 1, "refused"),
    ("DATABASE_URL", "sqlite:////nowhere/at/all.db", 1, ""),
    ("POLL", "often", 2, "LIBRARIAN_POLL"),
])
def test_a_wrong_setting_is_one_sentence(call: Call, environment: pytest.MonkeyPatch, *, name: str, value: str, code: int, word: str) -> None:
    environment.setenv(f"LIBRARIAN_{name}", value)
    for command in ("migrate", "list"):
        said = call(command)
        refused(said, code, word)
        assert "secret" not in said.err


def test_no_password_is_ever_shown(tmp_path: Path) -> None:
    librarian = build(Settings("postgresql://ann:secret@127.0.0.1:1/library", "http://127.0.0.1:1", "ann", "secret", tmp_path), Nobody())
    assert place(librarian.engine) == "postgresql://ann:***@127.0.0.1:1/library"
    librarian.close()


def test_json_has_no_letter_that_a_terminal_or_a_line_would_trip_over() -> None:
    text = as_json({"a": ["\x1b[2J\x7f\u202e\ud800\n"]})
    assert (text.isascii(), text.isprintable()) == (True, True)
    assert json.loads(text) == {"a": ["\x1b[2J\x7f\u202e\ud800\n"]}


# ---------------------------------------------------------------- one that qBittorrent has
def test_a_completed_download_is_shown_with_its_place_and_without_its_progress(call: Call, branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    branch.run()
    begin(qbittorrent)
    branch.later()
    assert json.loads(call("show", id, "--json").out)["storage_path"] is None
    assert "250.0 kB of 1.0 MB" in call("show", id).out
    finish(qbittorrent)
    branch.later()
    place = str(branch.settings.downloads / hash_of(1) / "emma.epub")
    assert json.loads(call("show", id, "--json").out)["storage_path"] == place
    shown = dict(line.split(maxsplit=1) for line in call("show", id).out.splitlines())
    assert (shown["status"], shown["storage_path"], "progress" in shown) == ("completed", place, False)
    assert "%" not in call("list").out


def test_a_cancel_that_waits_for_a_worker_is_said_to_wait(call: Call, branch: Branch) -> None:
    id = branch.start().id
    branch.run()
    said = call("cancel", id)
    assert (said.code, said.out) == (0, f"{id} is being canceled: a worker ends it within a second or so.\n")
    assert "No worker runs" in said.err
    assert "queued, being canceled" in call("list").out
    assert "cancel_requested_at_utc" in call("show", id).out
    branch.later(1)
    assert branch.seen(id).status == "canceled"
    assert "being canceled" not in call("list").out


@once
def test_the_beginning_of_an_id_is_enough_if_it_means_one(library: Call) -> None:
    first, second = (started(library("start", 1, medium, magnet(1))) for medium in ("text", "audio"))
    length = next(place for place in range(36) if first[place] != second[place])
    assert json.loads(library("show", first[: length + 1].upper(), "--json").out)["id"] == first
    refused(library("show", first[:8]), 2, f"{first} and {second}: give more of the id")
    refused(library("cancel", first[:8]), 2, "give more of the id")
    assert library("cancel", second[: length + 1]).out == f"{second} is canceled.\n"


@once
def test_a_table_fits_the_terminal(library: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    library("book", "add", "E" * 300, "--author", "\u4f60" * 200)
    ids = [started(library("start", book, "text", magnet(1))) for book in (1, 2)]
    monkeypatch.setattr(program, "width", lambda: 80)
    for command in ("list", "books", "users"):
        assert max(cell_len(line) for line in library(command).out.splitlines()) <= 80
    shown = [line.split()[0] for line in library("list").out.splitlines()[1:]]
    assert [json.loads(library("show", id, "--json").out)["id"] for id in shown] == ids[::-1]
    assert re.search("E{8,}…", library("list").out)
    assert "Emma" in library("list").out


@once
def test_a_pipe_gets_everything(library: Call) -> None:
    library("book", "add", "E" * 300)
    assert "E" * 300 in library("books").out


# ---------------------------------------------------------------- following
def test_a_new_download_is_said_to_be_queued_however_soon_it_ends(library: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    start_download = Desk.start_download

    def ended_at_once(desk: Desk, user: int, book: int, media_type: str, source: str | bytes) -> Started:
        made = start_download(desk, user, book, media_type, source)
        desk.cancel(user, made.id)
        return made

    monkeypatch.setattr(Desk, "start_download", ended_at_once)
    first, last = library("start", 1, "text", magnet(1), "--follow").out.splitlines()
    assert first.endswith(" is queued")
    assert last.startswith("canceled")


@once
def test_what_start_has_said_is_not_said_again_by_following(library: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "time", SimpleNamespace(sleep=interrupt))
    said = library("start", 1, "text", magnet(1), "--follow")
    assert (said.code, re.sub("^[0-9a-f-]{36}", "ID", said.out)) == (130, "ID is queued\n")


@pytest.fixture
def desk(branch: Branch) -> Desk:
    return Desk(branch.librarian)


def story(branch: Branch, qbittorrent: FakeQbittorrent, *steps: Callable[[FakeQbittorrent], None]) -> Callable[[], None]:
    """A wait that takes no time: at each, qBittorrent's next step is taken, and the worker sees it."""
    left = iter(steps)

    def wait() -> None:
        next(left, lambda _: None)(qbittorrent)
        branch.later()

    return wait


def begin(qbittorrent: FakeQbittorrent) -> None:
    record = qbittorrent.metadata(hash_of(1), name="emma.epub", size=1_000_000)
    record.state, record.progress = "downloading", 0.25


def go_on(qbittorrent: FakeQbittorrent) -> None:
    qbittorrent.torrents[hash_of(1)].progress = 0.5


def finish(qbittorrent: FakeQbittorrent) -> None:
    record = qbittorrent.torrents[hash_of(1)]
    record.state, record.progress = "uploading", 1.0


def nothing(qbittorrent: FakeQbittorrent) -> None:
    """Time passes, and nothing else."""


def test_a_pipe_gets_a_line_for_each_change(branch: Branch, desk: Desk, qbittorrent: FakeQbittorrent) -> None:
    out, id = io.StringIO(), branch.start().id
    branch.run()
    ended = followed(desk, id, out, story(branch, qbittorrent, begin, nothing, go_on, finish), terminal=False)
    assert ended.status == "completed"
    assert out.getvalue().splitlines() == [
        "queued",
        "downloading; 250.0 kB of 1.0 MB, 25 %; qBittorrent says downloading",
        "downloading; 500.0 kB of 1.0 MB, 50 %; qBittorrent says downloading",
        f"completed: the text of book 1 is at {branch.settings.downloads / hash_of(1) / 'emma.epub'}",
    ]


def test_a_torrent_that_went_away_is_said_to_be_missing(branch: Branch, desk: Desk, qbittorrent: FakeQbittorrent) -> None:
    out, id = io.StringIO(), branch.start().id
    branch.run()
    ended = followed(desk, id, out, story(branch, qbittorrent, begin, lambda it: it.torrents.clear()), terminal=False)
    assert ended.status == "failed"
    assert "not found in qBittorrent since" in out.getvalue().splitlines()[2]
    assert out.getvalue().splitlines()[-1] == "failed: missing_external_job"


@once
def test_a_terminal_gets_a_bar(branch: Branch, desk: Desk, qbittorrent: FakeQbittorrent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out, id = io.StringIO(), branch.start().id
    branch.run()
    followed(desk, id, out, story(branch, qbittorrent, begin, go_on, finish), terminal=True)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    frames = [" ".join(frame.split()) for frame in re.split(r"[\r\n]+", seen) if frame.strip()]
    assert any(frame.startswith("queued") for frame in frames)
    assert any(frame.startswith("downloading (downloading)") and "0.2/1.0 MB" in frame for frame in frames)
    assert any(frame.startswith("downloading (downloading)") and "0.5/1.0 MB" in frame and frame.endswith("/s") for frame in frames)
    assert any(frame.startswith("completed") and "1.0/1.0 MB" in frame for frame in frames)
    assert frames[-1].startswith("completed: the text of book 1 is at ")


@once
@pytest.mark.parametrize("terminal", [False, True])
def test_what_qbittorrent_says_is_shown_and_never_obeyed(branch: Branch, desk: Desk, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    said = replace(desk.found(branch.start().id), status="downloading", progress=Progress(1, None, "\x1b[2J[red]x\u202e"))
    monkeypatch.setattr(desk, "found", lambda _: said)
    out = io.StringIO()
    with pytest.raises(StopIteration):
        followed(desk, said.id, out, iter(()).__next__, terminal=terminal)
    assert "\ufffd[2J[red]x\ufffd" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


def test_following_ends_with_0_only_if_the_book_arrived(branch: Branch, desk: Desk, qbittorrent: FakeQbittorrent) -> None:
    def follow(id: str, *steps: Callable[[FakeQbittorrent], None]) -> int:
        return program._follow(desk, id, story(branch, qbittorrent, *steps))

    user = branch.library.add_user("ann").id
    done, failed, canceled = (branch.start(number, user=user).id for number in (1, 2, 3))
    branch.run()
    assert follow(done, begin, finish) == 0
    assert follow(failed, lambda it: setattr(it.torrents[hash_of(2)], "state", "error")) == 1
    assert follow(canceled, lambda _: (branch.cancel(canceled), None)[1]) == 1
    assert [branch.seen(id).status for id in (done, failed, canceled)] == ["completed", "failed", "canceled"]


@once
def test_who_stops_following_stops_nothing_else(branch: Branch, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    id = branch.start().id

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert program._follow(desk, id, interrupt) == 130
    said = capsys.readouterr().err
    assert "No worker runs" in said
    assert "goes on" in said
    assert branch.seen(id).active


@once
def test_following_says_that_qbittorrent_is_away(branch: Branch, desk: Desk, qbittorrent: FakeQbittorrent, monkeypatch: pytest.MonkeyPatch) -> None:
    branch.start()
    branch.run()
    qbittorrent.down()
    branch.later()
    # The kit's worker is gone by now; one that goes on would be seen.
    seen = replace(branch.app.status(), orphaned_kinds=[])
    monkeypatch.setattr(branch.app, "status", lambda: seen)
    warning = desk.warning() or ""
    assert f"nothing will move: qBittorrent at {qbittorrent.url} cannot be reached" in warning
    assert "OutsideDown" not in warning


# ---------------------------------------------------------------- processes
def settings(qbittorrent: FakeQbittorrent, database_url: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LIBRARIAN_", "INTERLOCK_"))}
    return clean | {
        "PYTHONPATH": str(ROOT), "LIBRARIAN_DATABASE_URL": database_url, "LIBRARIAN_QBITTORRENT_URL": qbittorrent.url, "LIBRARIAN_POLL": "0.2",
        "LIBRARIAN_QBITTORRENT_USERNAME": qbittorrent.username, "LIBRARIAN_QBITTORRENT_PASSWORD": qbittorrent.password, **more,
    }


@contextmanager
def process(directory: Path, environment: dict[str, str], *arguments: str, until: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A command that runs until it is told to end; ready when it has said this."""
    log = directory / "log"
    with log.open("w") as out:
        made = subprocess.Popen(
            [sys.executable, "-m", "apps.librarian", *arguments], cwd=directory, env=environment, text=True, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait(lambda: until in log.read_text() or made.poll() is not None)
        assert made.poll() is None, log.read_text()
        yield made, log
    finally:
        made.kill()
        made.wait()


def wait(happened: Callable[[], bool]) -> None:
    """Until it is so; a test of real processes has no clock to set."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_one_process_works_and_serves_until_a_signal(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    token = library("user", "add", "bob").out.strip()
    with process(tmp_path, settings(qbittorrent, database_url), "run", "--http", "127.0.0.1:0", until="listening at ") as (worker, log):
        address = log.read_text().partition("listening at ")[2].split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        headers = {"Authorization": f"Bearer {token}"}
        id = httpx.post(f"{address}/downloads", headers=headers, json={"book_id": 1, "media_type": "text", "source": magnet(1)}).json()["id"]
        wait(lambda: hash_of(1) in qbittorrent.torrents)
        begin(qbittorrent)
        finish(qbittorrent)
        wait(lambda: httpx.get(f"{address}/downloads/{id}", headers=headers).json()["status"] == "completed")
        assert httpx.get(f"{address}/health").json()["ok"]
        assert "server" not in httpx.get(f"{address}/health").headers
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    said = log.read_text()
    assert said.startswith(f"following qBittorrent at {qbittorrent.url}, every 0.2 s up to 100 downloads at once\nthe library is at ")
    assert qbittorrent.password not in said
    assert "Traceback" not in said


@once
def test_a_second_signal_ends_it_at_once(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    """Where qBittorrent holds an answer back, and somebody has no patience. The lease recovers the job."""
    gate = threading.Event()
    with process(tmp_path, settings(qbittorrent, database_url), "run", "--http", "127.0.0.1:0", until="listening at ") as (worker, log):
        qbittorrent.slow(gate)
        greeted = len(qbittorrent.log)
        id = started(library("start", 1, "text", magnet(1)))
        wait(lambda: len(qbittorrent.log) > greeted)
        worker.send_signal(signal.SIGTERM)
        # What is served ends first; the worker still waits for its handler.
        wait(lambda: "listening no more" in log.read_text())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == -signal.SIGTERM
    gate.set()
    assert json.loads(library("show", id, "--json").out)["status"] == "queued"


@once
def test_whoever_sends_too_much_over_the_network_hears_why(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {library('user', 'add', 'bob').out.strip()}", "Content-Type": "application/json"}
    with process(tmp_path, settings(qbittorrent, database_url), "serve", "--http", "127.0.0.1:0", until="listening at ") as (_, log):
        address = log.read_text().partition("listening at ")[2].split()[0]
        answer = httpx.post(f"{address}/downloads", headers=headers, content=b" " * 60 * 2**20, timeout=PATIENCE)
    assert (answer.status_code, "11 MiB" in answer.json()["error"]) == (413, True)


@once
def test_the_interface_alone_needs_no_qbittorrent(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    environment = settings(qbittorrent, database_url, LIBRARIAN_QBITTORRENT_PASSWORD="")
    with process(tmp_path, environment, "serve", "--http", "127.0.0.1:0", until="listening at ") as (server, log):
        address = log.read_text().partition("listening at ")[2].split()[0]
        assert httpx.get(f"{address}/books").status_code == 401
        started(library("start", 1, "text", magnet(1)))
        assert httpx.get(f"{address}/health").json()["worker"] is False
        taken = library("serve", "--http", address.removeprefix("http://"))
        refused(taken, 1, "Address already in use")
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0
    assert qbittorrent.log == []


@once
@pytest.mark.parametrize(("username", "password", "word"), [("admin", "adminadmin", "Everybody knows"), ("", "", "not set")])
def test_a_worker_with_default_credentials_is_refused(
    library: Call, qbittorrent: FakeQbittorrent, environment: pytest.MonkeyPatch, *, username: str, password: str, word: str,
) -> None:
    environment.setenv("LIBRARIAN_QBITTORRENT_URL", qbittorrent.url)
    environment.setenv("LIBRARIAN_QBITTORRENT_USERNAME", username)
    environment.setenv("LIBRARIAN_QBITTORRENT_PASSWORD", password)
    said = library("run")
    refused(said, 2, word)
    assert "LIBRARIAN_QBITTORRENT_PASSWORD" in said.err
    assert "adminadmin" not in said.err
    assert qbittorrent.log == []


@once
def test_a_worker_whose_password_is_refused_ends_at_once_after_one_login(
    library: Call, qbittorrent: FakeQbittorrent, environment: pytest.MonkeyPatch,
) -> None:
    library("start", 1, "text", magnet(1))
    environment.setenv("LIBRARIAN_QBITTORRENT_URL", qbittorrent.url)
    environment.setenv("LIBRARIAN_QBITTORRENT_USERNAME", "librarian")
    environment.setenv("LIBRARIAN_QBITTORRENT_PASSWORD", "a wrong one")
    for _ in range(BAN_AFTER):
        said = library("run")
        refused(said, 2, "refuses the user name 'librarian' with this password")
        assert "LIBRARIAN_QBITTORRENT_PASSWORD" in said.err
        assert "a wrong one" not in said.err
    assert len(qbittorrent.asked("auth/login")) == BAN_AFTER
    banned = library("run")
    refused(banned, 2, "Restart it, or wait until its ban ends")
    assert "PASSWORD" not in banned.err


@once
def test_a_worker_by_name_whose_password_is_refused_ends_with_the_sentence(qbittorrent: FakeQbittorrent, library: Call, database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "worker", "-A", "apps.librarian.app:app"], text=True, capture_output=True, timeout=PATIENCE, check=False,
        env=settings(qbittorrent, database_url, LIBRARIAN_QBITTORRENT_PASSWORD="a wrong one"))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "refuses the user name 'librarian' with this password" in done.stderr
    assert len(qbittorrent.asked("auth/login")) == 1


@once
def test_a_worker_starts_while_qbittorrent_is_away_and_says_so(library: Call, qbittorrent: FakeQbittorrent, database_url: str, tmp_path: Path) -> None:
    qbittorrent.down()
    with process(tmp_path, settings(qbittorrent, database_url), "run", until="the library is at ") as (worker, log):
        assert log.read_text().startswith(f"qBittorrent at {qbittorrent.url} cannot be reached. See that it runs. The worker starts all the same")
        qbittorrent.up()
        library("start", 1, "text", magnet(1))
        wait(lambda: hash_of(1) in qbittorrent.torrents)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0

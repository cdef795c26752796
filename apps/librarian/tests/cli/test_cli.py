"""Promises about the commands: what they print, how they exit, and that a wrong call is one sentence that changes nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from rich.cells import cell_len
from sqlalchemy import create_engine, text

from apps.common.database import place
from apps.common.telling import as_json
from apps.common.tests.commands import Call
from apps.librarian import main as program
from apps.librarian.jobs import build
from apps.librarian.settings import Settings
from apps.librarian.tests import torrents
from apps.librarian.tests.commands.kit import begin, finish, once, refused, started
from apps.librarian.tests.kit import Branch, hash_of, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent

NO_ID = "01900000-0000-7000-8000-000000000000"


class Nobody:
    """A qBittorrent that must not be asked."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        raise AssertionError(f"qBittorrent was asked to {name}")


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

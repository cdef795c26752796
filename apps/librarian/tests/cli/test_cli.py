"""The commands: their output, and wrong arguments or settings are one sentence and change nothing."""

import json
import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from apps.common.database import display_url
from apps.common.tests.command_runner import RunCommand
from apps.librarian.jobs import build
from apps.librarian.settings import Settings
from apps.librarian.tests import torrent_files
from apps.librarian.tests.cli.cli_steps import assert_refused, started_id
from apps.librarian.tests.librarian_kit import NO_ID, UncallableClient, magnet, sqlite_only


# ---------------------------------------------------------------- users and books
def test_migrate_is_idempotent(call: RunCommand) -> None:
    assert call("migrate").code == call("migrate").code == 0
    assert call("books").out == "id  title  author  state\n"


def test_token_is_printed_once_and_alone_on_stdout(librarian: RunCommand, database_url: str) -> None:
    result = librarian("user", "add", "bob")
    token = result.out.removesuffix("\n")
    assert re.fullmatch(r"[\w-]{43}", token)
    assert "bob is user 2" in result.err
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert token not in str(connection.execute(text("SELECT * FROM users")).all())
    engine.dispose()


def test_books_and_users_are_listed_as_a_table_and_as_json(librarian: RunCommand) -> None:
    assert librarian("books").out.splitlines()[1].split() == ["1", "Emma", "Jane", "Austen", "Archive"]
    assert json.loads(librarian("books", "--json").out) == [
        {"id": 1, "title": "Emma", "author": "Jane Austen", "state": "Archive"}
    ]
    librarian("user", "add", "bob")
    assert librarian("users").out == "id  name\n1   ann\n2   bob\n"
    assert json.loads(librarian("users", "--json").out) == [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}]


@sqlite_only
def test_commands_do_not_create_a_database(call: RunCommand, tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("LIBRARIAN_DATABASE_URL", "sqlite:///none.db")
    for arguments in (
        ("list",),
        ("books",),
        ("show", NO_ID),
        ("start", 1, "text", magnet(1)),
        ("user", "add", "ann"),
        ("run",),
        ("serve",),
    ):
        assert_refused(call(*arguments), 1, "`python -m apps.librarian migrate`")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- downloads
def test_download_is_started_found_again_shown_and_canceled(librarian: RunCommand) -> None:
    first = librarian("start", 1, "text", magnet(1))
    id = started_id(first)
    assert first.out == f"{id} is queued\n"
    assert librarian("start", 1, "text", magnet(1), "--user", "ann").out == f"{id} was active already: queued\n"
    assert librarian("list").out.splitlines()[1].split() == [id, "queued", "ann", "Emma", "text"]
    assert [each["id"] for each in json.loads(librarian("list", "--json").out)] == [id]
    shown = dict(line.split(maxsplit=1) for line in librarian("show", id.upper()).out.splitlines())
    assert (shown["status"], shown["source"], shown["user_id"]) == ("queued", magnet(1), "1")
    assert json.loads(librarian("show", id, "--json").out)["media_type"] == "text"
    assert librarian("cancel", id).out == f"{id} is canceled.\n"
    assert_refused(librarian("cancel", id), 1, "already canceled")


def test_torrent_file_is_read_from_its_path(librarian: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "night.torrent").write_bytes(torrent_files.v1())
    id = started_id(librarian("start", 1, "audio", "night.torrent"))
    assert json.loads(librarian("show", id, "--json").out)["source"].startswith("torrent:")


def test_user_is_given_by_name_or_id(librarian: RunCommand) -> None:
    librarian("user", "add", "bob")
    assert_refused(librarian("start", 1, "text", magnet(1)), 2, "1 (ann), 2 (bob)")
    assert json.loads(librarian("list", "--json").out) == []
    for given, user in (("ann", 1), ("2", 2)):
        id = started_id(librarian("start", 1, "text", magnet(1), "--user", given))
        assert json.loads(librarian("show", id, "--json").out)["user_id"] == user


@sqlite_only
def test_unique_prefix_of_an_id_is_enough(librarian: RunCommand) -> None:
    first, second = (started_id(librarian("start", 1, medium, magnet(1))) for medium in ("text", "audio"))
    length = next(index for index in range(36) if first[index] != second[index])
    assert json.loads(librarian("show", first[: length + 1].upper(), "--json").out)["id"] == first
    assert_refused(librarian("show", first[:8]), 2, f"{first} and {second}. Use more of the id")
    assert_refused(librarian("cancel", first[:8]), 2, "Use more of the id")
    assert librarian("cancel", second[: length + 1]).out == f"{second} is canceled.\n"


# ---------------------------------------------------------------- wrong arguments and settings
WRONG: list[tuple[tuple[object, ...], int, str]] = [
    (("start", 1, "video", magnet(1)), 2, "text, audio"),
    (("start", 1, "text", "magnet:?dn=emma"), 2, "hash"),
    (("start", 1, "text", "nowhere.torrent"), 2, "No such file"),
    (("start", 1, "text", "."), 2, "directory"),
    (("start", 1, "text", "\0"), 2, "not a valid path"),
    (("start", 1, "text", "/dev/zero"), 2, ""),
    (("start", "emma", "text", magnet(1)), 2, "'emma' is not a book id. `books` lists the ids"),
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
    (("user", "add", "ann"), 1, "There is already a user named ann"),
    (("book", "add", "a\x1b[2Jb"), 2, "title"),
    (("serve", "--http", "nowhere"), 2, "HOST:PORT"),
    (("serve", "--http", "127.0.0.1:99999"), 2, "HOST:PORT"),
    (("serve", "--http", "192.0.2.1:8099"), 1, "192.0.2.1:8099"),
]


def test_wrong_arguments_are_one_sentence_and_change_nothing(librarian: RunCommand) -> None:
    for arguments, code, word in WRONG:
        assert_refused(librarian(*arguments), code, word)
    assert json.loads(librarian("list", "--json").out) == []
    assert len(json.loads(librarian("books", "--json").out)) == 1
    assert len(json.loads(librarian("users", "--json").out)) == 1


@sqlite_only
@pytest.mark.parametrize(
    ("name", "value", "code", "word"),
    [
        ("DATABASE_URL", "mysql://x", 2, "SQLite"),
        ("DATABASE_URL", "postgresql://host:port/x", 2, "LIBRARIAN_DATABASE_URL"),
        ("DATABASE_URL", "postgresql://ann:secret@127.0.0.1:1/x", 1, "refused"),
        ("DATABASE_URL", "sqlite:////nowhere/at/all.db", 1, ""),
        ("POLL", "often", 2, "LIBRARIAN_POLL"),
    ],
)
def test_wrong_setting_is_one_sentence(
    call: RunCommand, environment: pytest.MonkeyPatch, *, name: str, value: str, code: int, word: str
) -> None:
    environment.setenv(f"LIBRARIAN_{name}", value)
    for command in ("migrate", "list"):
        result = call(command)
        assert_refused(result, code, word)
        assert "secret" not in result.err


def test_database_url_is_shown_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://ann:secret@127.0.0.1:1/library"
    librarian = build(Settings(url, "http://127.0.0.1:1", "ann", "secret", tmp_path), UncallableClient())
    assert display_url(librarian.engine) == "postgresql://ann:***@127.0.0.1:1/library"
    librarian.close()

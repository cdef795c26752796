"""The output of the commands: tables fit the terminal, JSON is ASCII, and downloads in qBittorrent are shown."""

import json
import re

import pytest
from rich.cells import cell_len

from apps.common.formatting import to_json
from apps.common.tests.command_runner import RunCommand
from apps.librarian import cli
from apps.librarian.tests.cli.cli_steps import begin, finish, started_id
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, magnet, sqlite_only


def test_completed_download_is_shown_with_its_path_and_without_progress(
    call: RunCommand, kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    id = kit.start().id
    kit.run()
    begin(qbittorrent)
    kit.run_after()
    assert json.loads(call("show", id, "--json").out)["storage_path"] is None
    assert "250.0 kB of 1.0 MB" in call("show", id).out
    finish(qbittorrent)
    kit.run_after()
    path = str(kit.settings.downloads / info_hash_of(1) / "emma.epub")
    assert json.loads(call("show", id, "--json").out)["storage_path"] == path
    shown = dict(line.split(maxsplit=1) for line in call("show", id).out.splitlines())
    assert (shown["status"], shown["storage_path"], "progress" in shown) == ("completed", path, False)
    assert "%" not in call("list").out


def test_cancel_says_that_a_worker_ends_the_download(call: RunCommand, kit: LibrarianKit) -> None:
    id = kit.start().id
    kit.run()
    result = call("cancel", id)
    assert (result.code, result.out) == (0, f"{id} is being canceled: a worker ends it within a second or so.\n")
    assert "No worker is running" in result.err
    assert "queued, being canceled" in call("list").out
    assert "cancel_requested_at_utc" in call("show", id).out
    kit.run_after(1)
    assert kit.download(id).status == "canceled"
    assert "being canceled" not in call("list").out


@sqlite_only
def test_tables_fit_the_terminal_and_a_pipe_gets_everything(
    librarian: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    librarian("book", "add", "E" * 300, "--author", "\u4f60" * 200)
    assert "E" * 300 in librarian("books").out
    ids = [started_id(librarian("start", book, "text", magnet(1))) for book in (1, 2)]
    monkeypatch.setattr(cli, "terminal_width", lambda: 80)
    for command in ("list", "books", "users"):
        assert max(cell_len(line) for line in librarian(command).out.splitlines()) <= 80
    shown = [line.split()[0] for line in librarian("list").out.splitlines()[1:]]
    assert [json.loads(librarian("show", id, "--json").out)["id"] for id in shown] == ids[::-1]
    assert re.search("E{8,}…", librarian("list").out)
    assert "Emma" in librarian("list").out


def test_json_contains_only_printable_ascii() -> None:
    text = to_json({"a": ["\x1b[2J\x7f\u202e\ud800\n"]})
    assert (text.isascii(), text.isprintable()) == (True, True)
    assert json.loads(text) == {"a": ["\x1b[2J\x7f\u202e\ud800\n"]}

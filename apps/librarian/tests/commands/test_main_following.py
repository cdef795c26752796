"""Promises about following a download: each change is said once, and who stops looking stops nothing else."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from apps.common.tests.commands import Call
from apps.librarian import main as program
from apps.librarian.desk import Desk
from apps.librarian.following import followed
from apps.librarian.library import Progress, Started
from apps.librarian.tests.commands.kit import begin, finish, once
from apps.librarian.tests.kit import Branch, hash_of, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent


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


def go_on(qbittorrent: FakeQbittorrent) -> None:
    qbittorrent.torrents[hash_of(1)].progress = 0.5


def nothing(qbittorrent: FakeQbittorrent) -> None:
    """Time passes, and nothing else."""


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

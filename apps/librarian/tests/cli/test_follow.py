"""Following a download: each change is printed once, and Ctrl-C does not end the download."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from apps.common.tests.command_runner import RunCommand
from apps.librarian import cli
from apps.librarian.follow import follow_download
from apps.librarian.models import Progress, StartedDownload
from apps.librarian.service import StaffService
from apps.librarian.tests.cli.cli_steps import begin, finish
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, magnet, sqlite_only


@pytest.fixture
def service(kit: LibrarianKit) -> StaffService:
    return StaffService(kit.librarian)


def step_through(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, *steps: Callable[[FakeQbittorrent], None]
) -> Callable[[], None]:
    """A wait that takes no time: each call takes qBittorrent's next step, and runs the worker."""
    left = iter(steps)

    def wait() -> None:
        next(left, lambda _: None)(qbittorrent)
        kit.run_after()

    return wait


def advance(qbittorrent: FakeQbittorrent) -> None:
    """qBittorrent has half of the torrent."""
    qbittorrent.torrents[info_hash_of(1)].progress = 0.5


def change_nothing(qbittorrent: FakeQbittorrent) -> None:
    """Time passes, and nothing else happens."""


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# ---------------------------------------------------------------- output
def test_new_download_is_printed_as_queued_even_if_it_ends_at_once(
    librarian: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_download = StaffService.start_download

    def start_and_cancel(
        service: StaffService, user: int, book: int, media_type: str, source: str | bytes
    ) -> StartedDownload:
        started = start_download(service, user, book, media_type, source)
        service.cancel(user, started.id)
        return started

    monkeypatch.setattr(StaffService, "start_download", start_and_cancel)
    first, last = librarian("start", 1, "text", magnet(1), "--follow").out.splitlines()
    assert first.endswith(" is queued")
    assert last.startswith("canceled")


@sqlite_only
def test_follow_does_not_repeat_the_line_of_start(librarian: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "time", SimpleNamespace(sleep=interrupt))
    result = librarian("start", 1, "text", magnet(1), "--follow")
    assert (result.code, re.sub("^[0-9a-f-]{36}", "ID", result.out)) == (130, "ID is queued\n")


def test_pipe_gets_a_line_for_each_change(
    kit: LibrarianKit, service: StaffService, qbittorrent: FakeQbittorrent
) -> None:
    out, id = io.StringIO(), kit.start().id
    kit.run()
    wait = step_through(kit, qbittorrent, begin, change_nothing, advance, finish)
    assert follow_download(service, id, out, wait, terminal=False).status == "completed"
    assert out.getvalue().splitlines() == [
        "queued",
        "downloading; 250.0 kB of 1.0 MB, 25 %; qBittorrent: downloading",
        "downloading; 500.0 kB of 1.0 MB, 50 %; qBittorrent: downloading",
        f"completed: the text of book 1 is at {kit.settings.downloads / info_hash_of(1) / 'emma.epub'}",
    ]


def test_missing_torrent_is_reported(kit: LibrarianKit, service: StaffService, qbittorrent: FakeQbittorrent) -> None:
    out, id = io.StringIO(), kit.start().id
    kit.run()
    wait = step_through(kit, qbittorrent, begin, lambda fake: fake.torrents.clear())
    assert follow_download(service, id, out, wait, terminal=False).status == "failed"
    assert "not found in qBittorrent since" in out.getvalue().splitlines()[2]
    assert out.getvalue().splitlines()[-1] == "failed: missing_external_job"


@sqlite_only
def test_terminal_gets_a_progress_bar(
    kit: LibrarianKit, service: StaffService, qbittorrent: FakeQbittorrent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out, id = io.StringIO(), kit.start().id
    kit.run()
    follow_download(service, id, out, step_through(kit, qbittorrent, begin, advance, finish), terminal=True)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    frames = [" ".join(frame.split()) for frame in re.split(r"[\r\n]+", text) if frame.strip()]
    active = [frame for frame in frames if frame.startswith("downloading (downloading)")]
    assert any(frame.startswith("queued") for frame in frames)
    assert any("0.2/1.0 MB" in frame for frame in active)
    assert any("0.5/1.0 MB" in frame and frame.endswith("/s") for frame in active)
    assert any(frame.startswith("completed") and "1.0/1.0 MB" in frame for frame in frames)
    assert frames[-1].startswith("completed: the text of book 1 is at ")


@sqlite_only
@pytest.mark.parametrize("terminal", [False, True])
def test_control_characters_of_qbittorrent_are_replaced(
    kit: LibrarianKit, service: StaffService, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    found = service.find_download(kit.start().id)
    hostile = replace(found, status="downloading", progress=Progress(1, None, "\x1b[2J[red]x\u202e"))
    monkeypatch.setattr(service, "find_download", lambda _: hostile)
    out = io.StringIO()
    with pytest.raises(StopIteration):
        follow_download(service, hostile.id, out, iter(()).__next__, terminal=terminal)
    assert "\ufffd[2J[red]x\ufffd" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


# ---------------------------------------------------------------- exit codes and warnings
def test_follow_exits_with_0_only_if_the_download_completed(
    kit: LibrarianKit, service: StaffService, qbittorrent: FakeQbittorrent
) -> None:
    def follow(id: str, *steps: Callable[[FakeQbittorrent], None]) -> int:
        return cli._follow(service, id, step_through(kit, qbittorrent, *steps))

    user = kit.service.add_user("ann").id
    done, failed, canceled = (kit.start(number, user=user).id for number in (1, 2, 3))
    kit.run()
    assert follow(done, begin, finish) == 0
    assert follow(failed, lambda fake: setattr(fake.torrents[info_hash_of(2)], "state", "error")) == 1
    assert follow(canceled, lambda _: (kit.cancel(canceled), None)[1]) == 1
    assert [kit.download(id).status for id in (done, failed, canceled)] == ["completed", "failed", "canceled"]


@sqlite_only
def test_ctrl_c_ends_follow_and_not_the_download(
    kit: LibrarianKit, service: StaffService, capsys: pytest.CaptureFixture[str]
) -> None:
    id = kit.start().id
    assert cli._follow(service, id, interrupt) == 130
    printed = capsys.readouterr().err
    assert "No worker is running" in printed
    assert "The download continues." in printed
    assert kit.download(id).active


@sqlite_only
def test_follow_warns_that_qbittorrent_is_unavailable(
    kit: LibrarianKit, service: StaffService, qbittorrent: FakeQbittorrent, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.start()
    kit.run()
    qbittorrent.down()
    kit.run_after()
    # The kit's worker has ended by now, which would be the first warning.
    status = replace(kit.app.status(), orphaned_kinds=[])
    monkeypatch.setattr(kit.app, "status", lambda: status)
    warning = service.stalled_warning() or ""
    assert f"downloads do not progress. qBittorrent at {qbittorrent.url} is unreachable" in warning
    assert "QbittorrentUnavailable" not in warning

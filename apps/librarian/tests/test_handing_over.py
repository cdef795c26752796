"""Promises about how a torrent comes to qBittorrent, and about where what it brings may lie."""

from pathlib import Path

import pytest

from apps.librarian.jobs import inside
from apps.librarian.tests.kit import QUEUED, Branch, complete, going, hash_of
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from interlock.testing import Crashed, Point


# ---------------------------------------------------------------- handing over
def test_a_torrent_that_cannot_be_handed_over_in_eight_tries_fails_with_the_reason(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    qbittorrent.down()
    branch.run()
    for left in (7, 6, 5, 4, 3, 2, 1):
        assert (branch.seen(id).status, branch.app.get(id).tries_left, branch.seen(id).failure_reason) == ("queued", left, None)
        branch.later(300)
    assert (branch.seen(id).status, branch.path(id)) == ("failed", [*QUEUED, ("queued", "failed")])
    assert (branch.seen(id).failure_reason or "").startswith(f"qBittorrent at {qbittorrent.url} cannot be reached")


def test_a_qbittorrent_may_be_away_for_minutes_before_a_download_fails(branch: Branch) -> None:
    """Half of the ceilings, on average: seven and a half minutes."""
    kind = branch.librarian.fetch.declaration
    assert sum(kind.backoff.ceiling(failures) for failures in range(1, kind.tries)) / 2 > 7 * 60


def test_a_login_that_is_refused_is_tried_again_only_after_a_minute(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """Else a few seconds would do for five of them, and qBittorrent bans who fails five times."""
    qbittorrent.password = "another by now"
    id = branch.start().id
    branch.run()
    branch.later(59)
    assert len(qbittorrent.asked("auth/login")) == 1
    qbittorrent.password = "correct horse"
    branch.later(1)
    assert (len(qbittorrent.asked("auth/login")), branch.seen(id).external_job_id) == (2, hash_of(1))


def test_a_qbittorrent_that_is_down_at_first_gets_the_torrent_later(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    qbittorrent.down()
    branch.run()
    qbittorrent.up()
    branch.later(10)
    assert (branch.seen(id).external_job_id, branch.seen(id).status, list(qbittorrent.torrents)) == (hash_of(1), "queued", [hash_of(1)])


def test_after_a_crash_before_the_hand_over_the_torrent_is_added_once(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    branch.worker.crash_at(Point.IN_PREPARE)
    with pytest.raises(Crashed):
        branch.run()
    branch.later(31)
    assert (len(qbittorrent.torrents), branch.seen(id).external_job_id) == (1, hash_of(1))


def test_a_failed_download_that_an_operator_drives_again_is_its_users_download(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    branch.run()
    record = going(qbittorrent, state="error")
    branch.later()
    qbittorrent.remove(record.hash)
    again = branch.app.redrive(id, by="operator").id
    branch.run()
    assert (branch.seen(again).status, branch.seen(again).external_job_id, list(qbittorrent.torrents)) == ("queued", hash_of(1), [hash_of(1)])
    complete(going(qbittorrent))
    branch.later()
    assert [each.status for each in branch.library.downloads(branch.seen(id).user_id)] == ["completed", "failed"]


# ---------------------------------------------------------------- where it lies
@pytest.mark.parametrize("path", ["/etc/passwd", "{downloads}", "{downloads}/../../etc", "{downloads}-of-others/emma", "emma.epub", ""])
def test_a_torrent_that_lies_elsewhere_is_never_put_on_the_shelf(branch: Branch, qbittorrent: FakeQbittorrent, path: str) -> None:
    emma = branch.library.add_book("Emma").id
    id = branch.start(book=emma).id
    branch.run()
    record = going(qbittorrent)
    complete(record)
    record.content_path = path.format(downloads=branch.settings.downloads)
    branch.later()
    assert (branch.seen(id).status, branch.library.assets(emma)) == ("failed", [])
    assert (branch.seen(id).failure_reason or "").startswith("unsafe_path: qBittorrent keeps it at ")


def test_a_link_that_leads_out_of_the_downloads_is_no_place_inside(tmp_path: Path) -> None:
    downloads, secret = tmp_path / "downloads", tmp_path / "secret"
    downloads.mkdir()
    secret.write_text("not a book")
    (downloads / "book").write_text("a book")
    (downloads / "out").symlink_to(secret)
    (downloads / "within").symlink_to(downloads / "book")
    (tmp_path / "door").symlink_to(downloads)
    assert inside(str(downloads / "book"), downloads)
    assert inside(str(downloads / "within"), downloads)
    assert inside(str(tmp_path / "door" / "book"), tmp_path / "door")
    assert inside(str(downloads / "not" / "here" / "yet"), downloads)
    assert not inside(str(downloads / "out"), downloads)

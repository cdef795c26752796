"""The hand-over of a torrent to qBittorrent: retries, logins, crashes, and redriven downloads."""

import pytest

from apps.librarian.errors import Conflict
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import (
    QUEUED,
    LibrarianKit,
    info_hash_of,
    magnet,
    set_complete,
    set_downloading,
)
from interlock.testing import Crashed, Failpoint


def test_download_fails_with_the_reason_after_eight_tries(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    id = kit.start().id
    qbittorrent.down()
    kit.run()
    for left in (7, 6, 5, 4, 3, 2, 1):
        assert (kit.download(id).status, kit.download(id).failure_reason) == ("queued", None)
        assert kit.app.get(id).tries_left == left
        kit.run_after(300)
    assert (kit.download(id).status, kit.transitions(id)) == ("failed", [*QUEUED, ("queued", "failed")])
    assert (kit.download(id).failure_reason or "").startswith(f"qBittorrent at {qbittorrent.url} is unreachable")


def test_qbittorrent_may_be_unreachable_for_minutes(kit: LibrarianKit) -> None:
    """The average backoff is half of the ceiling, which makes seven and a half minutes."""
    kind = kit.librarian.download.spec
    assert sum(kind.backoff.ceiling(failures) for failures in range(1, kind.tries)) / 2 > 7 * 60


def test_refused_login_is_retried_after_a_minute(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """qBittorrent bans an address after five failed logins."""
    qbittorrent.password = "another by now"
    id = kit.start().id
    kit.run()
    kit.run_after(59)
    assert len(qbittorrent.requests_to("auth/login")) == 1
    qbittorrent.password = "correct horse"
    kit.run_after(1)
    assert (len(qbittorrent.requests_to("auth/login")), kit.download(id).external_job_id) == (2, info_hash_of(1))


def test_torrent_is_handed_over_when_qbittorrent_is_back(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    id = kit.start().id
    qbittorrent.down()
    kit.run()
    qbittorrent.up()
    kit.run_after(10)
    assert (kit.download(id).external_job_id, kit.download(id).status) == (info_hash_of(1), "queued")
    assert list(qbittorrent.torrents) == [info_hash_of(1)]


def test_torrent_is_added_once_after_a_crash(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    id = kit.start().id
    kit.worker.crash_at(Failpoint.IN_PREPARE)
    with pytest.raises(Crashed):
        kit.run()
    kit.run_after(31)
    assert (len(qbittorrent.torrents), kit.download(id).external_job_id) == (1, info_hash_of(1))


# ---------------------------------------------------------------- redrive
def test_redriven_download_belongs_to_its_user(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    id = kit.start().id
    kit.run()
    record = set_downloading(qbittorrent, state="error")
    kit.run_after()
    qbittorrent.remove(record.hash)
    again = kit.app.redrive(id, by="operator").id
    kit.run()
    assert (kit.download(again).status, kit.download(again).external_job_id) == ("queued", info_hash_of(1))
    assert list(qbittorrent.torrents) == [info_hash_of(1)]
    set_complete(set_downloading(qbittorrent))
    kit.run_after()
    statuses = [each.status for each in kit.service.downloads(kit.download(id).user_id)]
    assert statuses == ["completed", "failed"]


def test_redriven_download_is_the_active_one_at_once(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """Its user sees it before a worker runs it, the same request finds it, and another source is a conflict."""
    user, book = kit.service.add_user("ann").id, kit.service.add_book("Emma").id
    first = kit.start(user=user, book=book).id
    kit.run()
    next(iter(qbittorrent.torrents.values())).state = "error"
    kit.run_after()
    again = kit.app.redrive(first, by="olga").id
    assert [(each.id, each.status) for each in kit.service.downloads(user)] == [(again, "queued"), (first, "failed")]
    with pytest.raises(Conflict, match="from another source"):
        kit.service.start_download(user, book, "text", magnet(2))
    found = kit.start(user=user, book=book)
    assert (found.id, found.created, kit.service.download(user, again).status) == (again, False, "queued")

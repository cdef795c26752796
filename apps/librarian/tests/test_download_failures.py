"""Failures in qBittorrent: errors and missing torrents fail a download, an unavailable qBittorrent does not."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from apps.librarian.clients.qbittorrent import QbittorrentClient, Torrent
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import (
    COMPLETED,
    DOWNLOADING,
    POLL,
    QUEUED,
    LibrarianKit,
    info_hash_of,
    open_kit,
    set_complete,
    set_downloading,
    sqlite_only,
)


# ---------------------------------------------------------------- errors and missing torrents
def test_error_state_of_qbittorrent_fails_the_download(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    cases = [(state, started) for state in ("error", "missingFiles") for started in (False, True)]
    ids = [kit.start(number).id for number, _ in enumerate(cases, 1)]
    kit.run()
    for number, (_, started) in enumerate(cases, 1):
        set_downloading(qbittorrent, number, state="downloading" if started else "queuedDL")
    kit.run_after()
    for number, (state, _) in enumerate(cases, 1):
        qbittorrent.torrents[info_hash_of(number)].state = state
    kit.run_after()
    for id, (state, started) in zip(ids, cases, strict=True):
        download = kit.download(id)
        assert (download.status, download.failure_reason) == ("failed", f"qbittorrent_error: {state}")
        assert download.completed_at_utc is None
        failed = [*DOWNLOADING, ("downloading", "failed")] if started else [*QUEUED, ("queued", "failed")]
        assert kit.transitions(id) == failed


def test_torrent_that_reappears_within_the_grace_is_followed_again(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    id = kit.start().id
    kit.run()
    set_downloading(qbittorrent)
    kit.run_after()
    record = qbittorrent.remove(info_hash_of(1))
    kit.run_after()
    first = kit.clock.now()
    for _ in range(3):
        assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == ("downloading", first)
        kit.run_after()
    qbittorrent.torrents[info_hash_of(1)] = record
    kit.run_after(14.9)
    kit.run_after(0.1)
    assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == ("downloading", None)
    # The next absence has its own grace.
    qbittorrent.remove(info_hash_of(1))
    kit.run_after()
    assert kit.download(id).first_not_found_at_utc == kit.clock.now()
    qbittorrent.torrents[info_hash_of(1)] = record
    set_complete(record)
    kit.run_after()
    assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == ("completed", None)
    assert kit.transitions(id) == COMPLETED


def test_download_fails_if_its_torrent_is_missing_for_a_minute(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    statuses = {kit.start(1).id: "downloading", kit.start(2).id: "queued"}
    kit.run()
    set_downloading(qbittorrent, 1)
    set_downloading(qbittorrent, 2, state="queuedDL")
    kit.run_after()
    for number in (1, 2):
        qbittorrent.remove(info_hash_of(number))
    kit.run_after()
    first = kit.clock.now()
    for _ in range(4):
        for id, status in statuses.items():
            assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == (status, first)
        kit.run_after()
    for id in statuses:
        download = kit.download(id)
        assert (download.status, download.failure_reason) == ("failed", "missing_external_job")
        assert download.first_not_found_at_utc == first
    assert (kit.clock.now() - first).total_seconds() == 60


# ---------------------------------------------------------------- qBittorrent is unavailable
def test_no_download_fails_while_qbittorrent_is_unreachable(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """The worker asks less and less often."""
    id = kit.start().id
    kit.run()
    record = set_downloading(qbittorrent)
    kit.run_after()
    qbittorrent.down()
    checks = []
    for _ in range(8):
        kit.run_after()
        checks.append(kit.app.executions(id)[0].next_check_at)
    (external,) = kit.app.status().external
    assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == ("downloading", None)
    assert (external.kind, external.executions, external.failures) == ("download", 1, 4)
    assert external.down_since is not None
    assert "qBittorrent" in (external.error or "")
    assert len(set(checks)) == external.failures
    qbittorrent.up()
    set_complete(record)
    kit.run_after(300)
    assert (kit.download(id).status, kit.transitions(id)) == ("completed", COMPLETED)
    assert kit.app.status().external[0].error is None


@pytest.mark.parametrize("failure", ["restart", "expired sessions", "status 503"])
def test_temporary_failure_of_qbittorrent_fails_no_download(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, failure: str
) -> None:
    id = kit.start().id
    kit.run()
    record = set_downloading(qbittorrent)
    match failure:
        case "restart":
            qbittorrent.down()
            qbittorrent.expire_sessions()
            qbittorrent.up()
        case "expired sessions":
            qbittorrent.expire_sessions()
        case _:
            qbittorrent.fail_with(503)
            kit.run_after()
            qbittorrent.fail_with(None)
    assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == ("queued", None)
    kit.run_after(2 * POLL)
    assert kit.download(id).status == "downloading"
    set_complete(record)
    kit.run_after()
    assert kit.transitions(id) == COMPLETED


class ImpatientClient(QbittorrentClient):
    """A client that waits only 0.1 seconds for the state of torrents."""

    def find_torrents(self, ids: Sequence[str]) -> Mapping[str, Torrent]:  # type: ignore[override]
        return QbittorrentClient(self._url, self._username, self._password, timeout=self.time_limit).find_torrents(ids)

    time_limit = 0.1


@sqlite_only
def test_slow_qbittorrent_is_asked_again_later(database_url: str, qbittorrent: FakeQbittorrent, tmp_path: Path) -> None:
    client, gate = ImpatientClient(qbittorrent.url, qbittorrent.username, qbittorrent.password), threading.Event()
    with open_kit(database_url, client, tmp_path) as kit:
        id = kit.start().id
        kit.run()
        set_downloading(qbittorrent)
        qbittorrent.slow(gate)
        kit.run_after()
        assert (kit.download(id).status, kit.download(id).first_not_found_at_utc) == ("queued", None)
        assert kit.app.status().external[0].failures == 1
        gate.set()
        client.time_limit = 20.0
        kit.run_after(2 * POLL)
        assert (kit.download(id).status, kit.app.status().external[0].failures) == ("downloading", 0)

"""The librarian with worker processes, a real qBittorrent and a real peer, any of which may be killed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.common.tests.databases import temporary_database
from apps.librarian.tests.real_qbittorrent import Peer, RealQbittorrent, run_qbittorrent, seeding
from apps.librarian.tests.real_workers import RealLibrarian, run_librarian
from apps.librarian.torrent_source import parse_source

pytestmark = pytest.mark.real

COMPLETED = ["queued", "downloading", "completed"]
CANCELED = ["queued", "downloading", "canceled"]
SOON = 20.0
"""Seconds within which no lease expires."""


@contextmanager
def real_server(directory: Path) -> Iterator[RealQbittorrent]:
    with run_qbittorrent(directory) as server:
        # TCP only: after a kill, the peer keeps a UDP connection and refuses a second one from the same address.
        server.post("app/setPreferences", json='{"bittorrent_protocol": 1, "refresh_interval": 200}')
        yield server


@pytest.fixture
def librarian(tmp_path: Path, quick_path: Path) -> Iterator[RealLibrarian]:
    with (
        temporary_database(None, quick_path, "librarian") as url,
        real_server(tmp_path) as server,
        run_librarian(url, server, tmp_path) as librarian,
    ):
        yield librarian


@dataclass(frozen=True)
class LeftDownloads:
    """Two downloads of killed workers, and the peers with their data."""

    librarian: RealLibrarian
    handed_over: str
    night: Peer
    added: str
    dawn: Peer


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[LeftDownloads]:
    """The downloads of two killed workers on PostgreSQL.

    The first worker was killed after the hand-over of a download. The second was killed while it asked about that one,
    and after it had added the torrent of another download without storing that. Both downloads wait until their leases
    expire, after thirty seconds; the other tests run in between.
    """
    path = tmp_path_factory.mktemp("left")
    with (
        temporary_database(postgres_url, path, "librarian") as url, real_server(path) as server, run_librarian(url,
        server, path) as librarian,
        seeding(path / "seed") as night, seeding(path / "seed", name="dawn.epub") as dawn,
        ExitStack() as until_killed,
    ):  # fmt: skip
        handed_over, first = librarian.start(night.torrent), librarian.worker()
        librarian.connect(handed_over, night)
        had = librarian.wait_until(lambda: librarian.downloaded(handed_over))
        librarian.kill_between_checks(first, handed_over)

        second = librarian.worker()
        librarian.wait_until(lambda: librarian.downloaded(handed_over, beyond=had), within=SOON)
        with librarian.qbittorrent_frozen():
            added = librarian.start(dawn.magnet)
            librarian.wait_until(lambda: (attempt := librarian.execution(added)) and attempt.status == "IN_PROGRESS")
            until_killed.enter_context(librarian.execution_locked(added))
        librarian.wait_until(lambda: librarian.qbittorrent.find_torrents([parse_source(dawn.magnet).id]))
        with librarian.qbittorrent_frozen():
            librarian.wait_until(lambda: librarian.is_being_reconciled(handed_over))
            second.kill()
        until_killed.close()
        yield LeftDownloads(librarian, handed_over, night, added, dawn)


def test_killed_workers_leave_consistent_downloads(left: LeftDownloads) -> None:
    librarian = left.librarian
    assert librarian.is_being_reconciled(left.handed_over)
    assert (librarian.states(left.handed_over), librarian.states(left.added)) == (["queued", "downloading"], ["queued"])
    assert (librarian.download(left.added).external_job_id, len(librarian.app.executions(left.added))) == (None, 1)
    assert librarian.rows("SELECT count(*) FROM media_assets") == [(0,)]
    assert librarian.app.verify().ok


def test_torrent_file_and_magnet_link_are_downloaded(librarian: RealLibrarian, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night, seeding(tmp_path / "seed", name="night.m4b") as heard:
        book = librarian.service.add_book("Night and Day").id
        text, audio = (
            librarian.start(night.torrent, book=book),
            librarian.start(heard.magnet, book=book, media_type="audio"),
        )
        assert (librarian.download(text).source, librarian.download(audio).source) == (
            f"torrent:{parse_source(night.torrent).id}",
            heard.magnet,
        )
        assert librarian.states(text) == librarian.states(audio) == ["queued"]
        librarian.worker()
        librarian.worker()
        librarian.connect(text, night)
        librarian.connect(audio, heard)
        librarian.wait_until(lambda: librarian.downloaded(text) and librarian.downloaded(audio))
        assert ([found.state for found in librarian.service.books()], librarian.service.assets(book)) == (
            ["Archive"],
            [],
        )
        for id, peer in ((text, night), (audio, heard)):
            librarian.finish(id, peer)
            assert librarian.has_asset(id, peer)
        assert librarian.states(text) == librarian.states(audio) == COMPLETED
    assert [found.state for found in librarian.service.books()] == ["Library"]
    assert librarian.app.verify().ok


def test_download_survives_the_kill_of_qbittorrent(librarian: RealLibrarian, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night:
        id = librarian.start(night.torrent)
        librarian.worker()
        known = librarian.connect(id, night)
        librarian.wait_until(lambda: librarian.downloaded(id))
        librarian.server.stop(kill=True)
        librarian.wait_until(lambda: librarian.app.status().external[0].error)
        (external,) = librarian.app.status().external
        assert (external.kind, external.executions, librarian.app.status().healthy) == ("download", 1, False)
        assert "is unreachable" in (external.error or "")
        assert (librarian.download(id).status, librarian.download(id).first_not_found_at_utc) == ("downloading", None)

        librarian.server.start()
        librarian.wait_until(lambda: librarian.qbittorrent.find_torrents([known]))
        librarian.finish(id, night)
        assert (librarian.states(id), len(librarian.app.executions(id))) == (COMPLETED, 1)
        assert librarian.has_asset(id, night)
    assert librarian.app.status().healthy
    assert librarian.app.verify().ok


def test_torrent_that_is_deleted_and_added_again_by_hand_is_followed(librarian: RealLibrarian, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night:
        id = librarian.start(night.torrent)
        librarian.worker()
        known = librarian.connect(id, night)
        librarian.wait_until(lambda: librarian.downloaded(id))
        librarian.server.post("torrents/delete", hashes=known, deleteFiles="true")
        missing = librarian.wait_until(lambda: librarian.download(id).first_not_found_at_utc)
        assert (librarian.download(id).status, librarian.download(id).first_not_found_at_utc) == (
            "downloading",
            missing,
        )
        librarian.server.post("torrents/add", urls=night.magnet, savepath=str(librarian.settings.downloads / known))
        librarian.wait_until(lambda: librarian.download(id).first_not_found_at_utc is None)
        librarian.finish(id, night)
        assert librarian.states(id) == COMPLETED
        assert librarian.has_asset(id, night)
    assert librarian.app.verify().ok


def test_last_cancellation_deletes_the_torrent_and_its_files(librarian: RealLibrarian, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night:
        ann, bob = librarian.start(night.torrent), librarian.start(night.magnet)
        librarian.worker()
        known = librarian.connect(ann, night)
        assert librarian.connect(bob, night) == known
        librarian.wait_until(lambda: librarian.downloaded(ann) and librarian.downloaded(bob))
        file = Path(librarian.qbittorrent.find_torrents([known])[known].content_path)
        assert librarian.settings.downloads / known in file.parents

        librarian.cancel(ann)
        librarian.wait_until(lambda: [job.state for job in librarian.app.jobs(kind="remove")] == ["SUCCEEDED"])
        assert (
            librarian.states(ann),
            librarian.download(bob).status,
            list(librarian.qbittorrent.find_torrents([known])),
        ) == (
            CANCELED,
            "downloading",
            [known],
        )
        assert file.exists()

        librarian.cancel(bob)
        librarian.wait_until(lambda: [job.state for job in librarian.app.jobs(kind="remove")] == ["SUCCEEDED"] * 2)
        assert (librarian.states(bob), librarian.qbittorrent.find_torrents([known])) == (CANCELED, {})
        librarian.wait_until(lambda: not file.exists())
    assert librarian.rows("SELECT count(*) FROM media_assets") == [(0,)]
    assert librarian.app.verify().ok


def test_other_workers_finish_the_downloads_of_killed_workers(left: LeftDownloads) -> None:
    librarian = left.librarian
    librarian.worker()
    assert librarian.connect(left.added, left.dawn) == parse_source(left.dawn.magnet).id
    for id, peer in ((left.added, left.dawn), (left.handed_over, left.night)):
        librarian.finish(id, peer)
        assert librarian.has_asset(id, peer)
        assert librarian.states(id) == COMPLETED
    # The handed-over download lost no try. The other one lost a try with its lease.
    spent = [
        (job.attempt, job.lease_losses, job.tries - job.tries_left)
        for job in map(librarian.app.get, (left.handed_over, left.added))
    ]
    assert spent == [(1, 0, 0), (2, 1, 1)]
    assert librarian.rows("SELECT count(*) FROM media_assets") == [(2,)]
    assert librarian.app.verify().ok

"""A download follows qBittorrent: each answer becomes a state, and completion is one transaction."""

import pytest

from apps.librarian.tests import torrent_files
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import (
    COMPLETED,
    QUEUED,
    LibrarianKit,
    info_hash_of,
    magnet,
    set_complete,
    set_downloading,
    sqlite_only,
)
from interlock.testing import Crashed, Failpoint


# ---------------------------------------------------------------- states
def test_download_goes_from_queued_to_completed_with_its_asset(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    emma = kit.service.add_book("Emma")
    id = kit.start(book=emma.id).id
    kit.run()
    assert qbittorrent.torrents[info_hash_of(1)].save_path == str(kit.settings.downloads / info_hash_of(1))
    download = kit.download(id)
    assert (download.status, download.external_job_id, kit.transitions(id)) == ("queued", info_hash_of(1), QUEUED)

    record = set_downloading(qbittorrent)
    kit.run_after()
    download = kit.download(id)
    assert download.progress is not None
    assert (download.status, download.progress.done, download.progress.total, download.progress.note) == (
        "downloading",
        250,
        1000,
        "downloading",
    )
    assert kit.service.books()[0].state == "Archive"

    set_complete(record)
    kit.run_after()
    download, (asset,) = kit.download(id), kit.service.assets(emma.id)
    assert (download.status, download.completed_at_utc, download.failure_reason) == (
        "completed",
        kit.clock.now(),
        None,
    )
    assert kit.transitions(id) == COMPLETED
    # The last progress, 25 %, would be wrong for a completed download.
    assert download.progress is None
    assert (asset.media_type, asset.status, asset.torrent_id) == ("text", "available", info_hash_of(1))
    assert asset.source_url == magnet(1)
    assert asset.storage_path == str(kit.settings.downloads / info_hash_of(1) / "emma.epub")
    assert kit.service.books()[0].state == "Library"
    assert kit.app.verify().ok


def test_torrent_that_is_complete_at_the_first_check_passes_through_downloading(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    states = ["uploading", "forcedUP", "stalledUP", "queuedUP", "pausedUP", "checkingUP"]
    ids = [kit.start(number).id for number, _ in enumerate(states, 1)]
    kit.run()
    for number, state in enumerate(states, 1):
        set_complete(set_downloading(qbittorrent, number), state)
    kit.run_after()
    for id in ids:
        assert (kit.download(id).status, kit.transitions(id)) == ("completed", COMPLETED)


def test_download_stays_queued_while_the_torrent_waits_in_qbittorrent(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    states = ["queuedDL", "pausedDL", "checkingResumeData", "unknown"]
    ids = [kit.start(number).id for number, _ in enumerate(states, 1)]
    kit.run()
    for number, state in enumerate(states, 1):
        set_downloading(qbittorrent, number, state=state, progress=0.0)
    kit.run_after()
    for id in ids:
        assert (kit.download(id).status, kit.download(id).progress, kit.transitions(id)) == ("queued", None, QUEUED)


def test_download_is_not_completed_while_qbittorrent_moves_its_files(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    id = kit.start().id
    kit.run()
    record = set_downloading(qbittorrent)
    kit.run_after()
    set_complete(record, "moving")
    kit.run_after()
    assert kit.download(id).status == "downloading"
    set_complete(record, "uploading")
    kit.run_after()
    assert kit.download(id).status == "completed"


def test_torrent_file_is_stored_until_it_is_handed_over(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    ann, emma, data = kit.service.add_user("ann"), kit.service.add_book("Emma"), torrent_files.v1()
    id = kit.service.start_download(ann.id, emma.id, "audio", data).id
    kit.run()
    (record,) = qbittorrent.torrents.values()
    (request,) = qbittorrent.requests_to("torrents/add")
    source = f"torrent:{record.v1}"
    assert (list(request.files.values()), kit.download(id).source) == ([data], source)
    set_complete(record)
    kit.run_after()
    assert (kit.download(id).status, kit.service.assets(emma.id)[0].source_url) == ("completed", source)


# ---------------------------------------------------------------- requests to qBittorrent
def test_qbittorrent_is_asked_every_fifteen_seconds(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    kit.start()
    kit.run()
    set_downloading(qbittorrent)
    requests = len(qbittorrent.requests_to("torrents/info"))
    kit.run_after(14)
    assert len(qbittorrent.requests_to("torrents/info")) == requests
    kit.run_after(1)
    assert len(qbittorrent.requests_to("torrents/info")) == requests + 1


def test_one_request_asks_about_all_downloads(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    ids = [kit.start(number).id for number in (1, 2, 3)] + [kit.start(3).id]
    kit.run()
    for number in (1, 2, 3):
        set_downloading(qbittorrent, number)
    before = len(qbittorrent.requests_to("torrents/info"))
    kit.run_after()
    assert [kit.download(id).status for id in ids] == ["downloading"] * 4
    (request,) = qbittorrent.requests_to("torrents/info")[before:]
    assert sorted(request.params["hashes"].split("|")) == [info_hash_of(number) for number in (1, 2, 3)]


@sqlite_only
def test_one_request_asks_about_at_most_a_hundred_downloads(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    ann = kit.service.add_user("ann").id
    ids = [kit.start(number, user=ann).id for number in range(1, 102)]
    kit.run()
    for number in range(1, 102):
        set_downloading(qbittorrent, number)
    before = len(qbittorrent.requests_to("torrents/info"))
    kit.run_after()
    assert {kit.download(id).status for id in ids} == {"downloading"}
    batches = [request.params["hashes"].split("|") for request in qbittorrent.requests_to("torrents/info")[before:]]
    assert [len(batch) for batch in batches] == [100, 1]


# ---------------------------------------------------------------- assets
def test_existing_source_url_of_an_asset_stays_unchanged(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    emma = kit.service.add_book("Emma")
    kit.write(
        "INSERT INTO media_assets (book_id, media_type, status, source_url, updated_at) "
        "VALUES (:book, 'text', 'wanted', 'https://example.com/emma', :at)",
        book=emma.id,
        at="2026-01-01T00:00:00.000000Z",
    )
    kit.start(book=emma.id)
    kit.run()
    set_complete(set_downloading(qbittorrent))
    kit.run_after()
    (asset,) = kit.service.assets(emma.id)
    assert (asset.status, asset.source_url) == ("available", "https://example.com/emma")
    assert asset.torrent_id == info_hash_of(1)
    assert asset.updated_at.year > 2025
    assert kit.service.books()[0].state == "Library"


def test_second_download_of_a_medium_updates_its_asset(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    emma = kit.service.add_book("Emma").id
    for number in (1, 2):
        id = kit.start(number, book=emma).id
        kit.run()
        set_complete(set_downloading(qbittorrent, number))
        kit.run_after()
        assert kit.download(id).status == "completed"
    (asset,) = kit.service.assets(emma)
    assert (asset.torrent_id, asset.source_url) == (info_hash_of(2), magnet(1))
    assert kit.service.books()[0].state == "Library"


def test_text_and_audio_of_a_book_are_two_assets(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """Other books stay unchanged."""
    emma, other = kit.service.add_book("Emma").id, kit.service.add_book("Persuasion").id
    kit.write("UPDATE books SET state = 'Library' WHERE id = :id", id=other)
    kit.start(1, book=emma, media_type="text")
    kit.start(2, book=emma, media_type="audio")
    kit.run()
    for number in (1, 2):
        set_complete(set_downloading(qbittorrent, number))
    kit.run_after()
    assets = [(asset.media_type, asset.torrent_id) for asset in kit.service.assets(emma)]
    assert assets == [("text", info_hash_of(1)), ("audio", info_hash_of(2))]
    assert kit.service.assets(other) == []
    assert [book.state for book in kit.service.books()] == ["Library", "Library"]


def test_crash_before_the_commit_stores_no_asset(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    emma = kit.service.add_book("Emma").id
    id = kit.start(book=emma).id
    kit.run()
    set_complete(set_downloading(qbittorrent))
    kit.worker.crash_at(Failpoint.IN_COMMIT)
    with pytest.raises(Crashed):
        kit.run_after()
    assert (kit.download(id).status, kit.service.assets(emma)) == ("queued", [])
    assert kit.service.books()[0].state == "Archive"
    kit.run_after(31)
    assert (kit.download(id).status, len(kit.service.assets(emma))) == ("completed", 1)
    assert kit.transitions(id) == COMPLETED

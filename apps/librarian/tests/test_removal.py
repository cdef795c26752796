"""Removal of torrents: a torrent is deleted when no download and no asset needs it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.librarian import tables
from apps.librarian.tables import DownloadRequest
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, magnet, run_removals, set_complete
from apps.librarian.tests.removal_steps import changes, hand_over, leave_unneeded_torrent, run_second_worker
from interlock.testing import Crashed, Failpoint


def test_canceling_a_download_deletes_its_torrent_and_files(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    (id,) = hand_over(kit, qbittorrent, "ann")
    marked = kit.cancel(id)
    assert (marked.status, marked.being_canceled, marked.cancel_requested_at_utc) == (
        "downloading",
        True,
        kit.clock.now(),
    )
    run_removals(kit)
    assert (kit.download(id).status, kit.download(id).being_canceled, kit.removals(), qbittorrent.torrents) == (
        "canceled",
        False,
        ["SUCCEEDED"],
        {},
    )
    (request,) = qbittorrent.requests_to("torrents/delete")
    assert (request.params["hashes"], request.params["deleteFiles"].lower()) == (info_hash_of(1), "true")
    assert kit.app.verify().ok


def test_removal_is_stored_in_the_transaction_of_the_cancellation(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    (id,) = hand_over(kit, qbittorrent, "ann")
    kit.cancel(id)
    kit.worker.crash_at(Failpoint.IN_COMMIT, kind="download")
    with pytest.raises(Crashed):
        kit.run()
    assert (kit.download(id).status, kit.removals()) == ("downloading", [])
    kit.run_after(31)
    assert (kit.download(id).status, len(kit.removals())) == ("canceled", 1)


def test_torrent_stays_until_its_last_download_is_canceled(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    ann, bob = hand_over(kit, qbittorrent, "ann", "bob")
    kit.cancel(ann)
    run_removals(kit)
    assert (kit.download(ann).status, kit.download(bob).status, list(qbittorrent.torrents)) == (
        "canceled",
        "downloading",
        [info_hash_of(1)],
    )
    kit.cancel(bob)
    run_removals(kit)
    assert (kit.download(bob).status, qbittorrent.torrents, changes(qbittorrent)) == (
        "canceled",
        {},
        ["add", "add", "delete"],
    )


def test_late_removal_does_not_touch_a_newer_download(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    leave_unneeded_torrent(kit, qbittorrent)
    new = kit.start().id
    assert kit.removals() == ["PENDING"]
    run_removals(kit)
    kit.run_after()
    assert (kit.removals(), kit.download(new).status) == (["SUCCEEDED"], "downloading")
    assert (list(qbittorrent.torrents), changes(qbittorrent)) == ([info_hash_of(1)], ["add", "add"])


def test_removal_waits_for_a_download_that_is_being_stored(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """Before the commit, it could not see whether the torrent is needed."""
    leave_unneeded_torrent(kit, qbittorrent)
    request = DownloadRequest(
        kit.service.add_user("cleo").id, kit.service.add_book("Emma").id, "text", magnet(1), info_hash_of(1)
    )
    with ThreadPoolExecutor(1) as pool:
        with kit.librarian.engine.begin() as tx:
            tables.lock_torrent(tx, request.torrent_id)
            kit.librarian.download.using(conn=tx, unique_key=request.unique_key).enqueue(request)
            removing = pool.submit(run_second_worker, kit)
            with pytest.raises(TimeoutError):
                removing.result(timeout=0.5)
        removing.result()
    run_removals(kit)
    assert (kit.removals(), list(qbittorrent.torrents), changes(qbittorrent)) == (
        ["SUCCEEDED"],
        [info_hash_of(1)],
        ["add", "add"],
    )


def test_canceling_a_download_keeps_the_files_of_an_asset(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """Both downloads use the same files."""
    (ann,) = hand_over(kit, qbittorrent, "ann")
    set_complete(qbittorrent.torrents[info_hash_of(1)])
    kit.run_after()
    bob = kit.start().id
    kit.cancel(bob)
    run_removals(kit)
    assert (kit.download(ann).status, kit.download(bob).status, kit.removals()) == (
        "completed",
        "canceled",
        ["SUCCEEDED"],
    )
    assert (list(qbittorrent.torrents), changes(qbittorrent)) == ([info_hash_of(1)], ["add"])


def test_download_that_was_never_handed_over_has_nothing_to_remove(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent
) -> None:
    kit.cancel(kit.start().id)
    run_removals(kit)
    assert (kit.removals(), changes(qbittorrent)) == (["SUCCEEDED"], [])


@pytest.mark.parametrize("category", ["films", "librarian"])
def test_torrent_that_the_librarian_did_not_add_is_not_removed(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, tmp_path: Path, category: str
) -> None:
    kit.start()
    kit.run()
    record = qbittorrent.torrents[info_hash_of(1)]
    record.category, record.save_path = category, str(tmp_path / "films")
    bob = kit.start().id
    kit.run()
    for job in kit.app.jobs(kind="download"):
        kit.cancel(job.id)
    run_removals(kit)
    assert (kit.download(bob).status, kit.removals(), list(qbittorrent.torrents)) == (
        "canceled",
        ["SUCCEEDED", "SUCCEEDED"],
        [info_hash_of(1)],
    )

"""Promises about a download that qBittorrent is at work on: what it says becomes the download's state, and what it does not say changes nothing."""

import threading
from pathlib import Path

import pytest

from apps.librarian.client import Qbittorrent
from apps.librarian.tests import kit, torrents
from apps.librarian.tests.kit import BEGUN, COMPLETED, POLL, QUEUED, Branch, complete, going, hash_of, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from interlock.testing import Crashed, Point


# ---------------------------------------------------------------- the way to the end
def test_a_download_is_followed_from_the_request_to_the_shelf(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    emma = branch.library.add_book("Emma")
    id = branch.start(book=emma.id).id
    branch.run()
    assert qbittorrent.torrents[hash_of(1)].save_path == str(branch.settings.downloads / hash_of(1))
    assert (branch.seen(id).status, branch.seen(id).external_job_id, branch.path(id)) == ("queued", hash_of(1), QUEUED)

    record = going(qbittorrent)
    branch.later()
    seen = branch.seen(id)
    assert (seen.status, seen.progress and (seen.progress.done, seen.progress.total, seen.progress.note)) == ("downloading", (250.0, 1000.0, "downloading"))
    assert branch.library.books()[0].state == "Archive"

    complete(record)
    branch.later()
    seen, (asset,) = branch.seen(id), branch.library.assets(emma.id)
    assert (seen.status, seen.completed_at_utc, seen.failure_reason, branch.path(id)) == ("completed", branch.clock.now(), None, COMPLETED)
    # What was seen last is of a download that goes on: "25 %" of one that is there would be wrong.
    assert seen.progress is None
    assert (asset.media_type, asset.status, asset.torrent_id, asset.source_url) == ("text", "available", hash_of(1), magnet(1))
    assert asset.storage_path == str(branch.settings.downloads / hash_of(1) / "emma.epub")
    assert branch.library.books()[0].state == "Library"
    assert branch.app.verify().ok


@pytest.mark.parametrize("state", ["uploading", "forcedUP", "stalledUP", "queuedUP", "pausedUP", "checkingUP"])
def test_a_torrent_that_is_complete_at_first_sight_passes_through_downloading(branch: Branch, qbittorrent: FakeQbittorrent, state: str) -> None:
    id = branch.start().id
    branch.run()
    complete(going(qbittorrent), state)
    branch.later()
    assert (branch.seen(id).status, branch.path(id)) == ("completed", COMPLETED)


@pytest.mark.parametrize("state", ["queuedDL", "pausedDL", "checkingResumeData", "unknown"])
def test_a_torrent_that_waits_in_qbittorrent_leaves_its_download_queued(branch: Branch, qbittorrent: FakeQbittorrent, state: str) -> None:
    id = branch.start().id
    branch.run()
    going(qbittorrent, state=state, progress=0.0)
    branch.later()
    assert (branch.seen(id).status, branch.seen(id).progress, branch.path(id)) == ("queued", None, QUEUED)


def test_files_that_are_still_being_moved_are_not_on_the_shelf(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    branch.run()
    record = going(qbittorrent)
    branch.later()
    complete(record, "moving")
    branch.later()
    assert branch.seen(id).status == "downloading"
    complete(record, "uploading")
    branch.later()
    assert branch.seen(id).status == "completed"


def test_qbittorrent_is_asked_every_fifteen_seconds_and_not_before(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    branch.start()
    branch.run()
    going(qbittorrent)
    asked = len(qbittorrent.asked("torrents/info"))
    branch.later(14)
    assert len(qbittorrent.asked("torrents/info")) == asked
    branch.later(1)
    assert len(qbittorrent.asked("torrents/info")) == asked + 1


def test_all_downloads_are_asked_about_in_one_request(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    ids = [branch.start(number).id for number in (1, 2, 3)] + [branch.start(3).id]
    branch.run()
    for number in (1, 2, 3):
        going(qbittorrent, number)
    asked = len(qbittorrent.asked("torrents/info"))
    branch.later()
    assert [branch.seen(id).status for id in ids] == ["downloading"] * 4
    (request,) = qbittorrent.asked("torrents/info")[asked:]
    assert sorted(request.params["hashes"].split("|")) == [hash_of(number) for number in (1, 2, 3)]


def test_at_most_a_hundred_are_asked_about_in_one_request(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    ann = branch.library.add_user("ann").id
    ids = [branch.start(number, user=ann).id for number in range(1, 102)]
    branch.run()
    for number in range(1, 102):
        going(qbittorrent, number)
    asked = len(qbittorrent.asked("torrents/info"))
    branch.later()
    assert {branch.seen(id).status for id in ids} == {"downloading"}
    assert [len(request.params["hashes"].split("|")) for request in qbittorrent.asked("torrents/info")[asked:]] == [100, 1]


def test_a_torrent_file_is_kept_until_it_is_handed_over(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    ann, emma, data = branch.library.add_user("ann"), branch.library.add_book("Emma"), torrents.v1()
    started = branch.library.start_download(ann.id, emma.id, "audio", data)
    branch.run()
    (record,) = qbittorrent.torrents.values()
    (sent,) = qbittorrent.asked("torrents/add")
    assert (list(sent.files.values()), branch.seen(started.id).source) == ([data], f"torrent:{record.v1}")
    complete(record)
    branch.later()
    assert (branch.seen(started.id).status, branch.library.assets(emma.id)[0].source_url) == ("completed", f"torrent:{record.v1}")


def test_a_hybrid_that_is_renamed_on_the_way_is_still_followed(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    branch.run()
    record = qbittorrent.metadata(hash_of(1), name="emma", size=1000, v2="ab" * 32)
    complete(record)
    assert hash_of(1) not in qbittorrent.torrents
    branch.later()
    assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc) == ("completed", None)


# ---------------------------------------------------------------- what completion writes
def test_where_an_asset_came_from_stays_as_it_was_written(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    emma = branch.library.add_book("Emma")
    branch.write(
        "INSERT INTO media_assets (book_id, media_type, status, source_url, updated_at) VALUES (:book, 'text', 'wanted', 'https://example.com/emma', :at)",
        book=emma.id, at="2026-01-01T00:00:00.000000Z")
    branch.start(book=emma.id)
    branch.run()
    complete(going(qbittorrent))
    branch.later()
    (asset,) = branch.library.assets(emma.id)
    assert (asset.status, asset.source_url, asset.torrent_id) == ("available", "https://example.com/emma", hash_of(1))
    assert asset.updated_at.year > 2025
    assert branch.library.books()[0].state == "Library"


def test_a_second_download_of_what_is_there_keeps_one_asset(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    emma = branch.library.add_book("Emma").id
    for number in (1, 2):
        id = branch.start(number, book=emma).id
        branch.run()
        complete(going(qbittorrent, number))
        branch.later()
        assert branch.seen(id).status == "completed"
    (asset,) = branch.library.assets(emma)
    assert (asset.torrent_id, asset.source_url, branch.library.books()[0].state) == (hash_of(2), magnet(1), "Library")


def test_text_and_audio_of_one_book_are_two_assets_and_other_books_stay(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    emma, other = branch.library.add_book("Emma").id, branch.library.add_book("Persuasion").id
    branch.write("UPDATE books SET state = 'Library' WHERE id = :id", id=other)
    branch.start(1, book=emma, media_type="text")
    branch.start(2, book=emma, media_type="audio")
    branch.run()
    for number in (1, 2):
        complete(going(qbittorrent, number))
    branch.later()
    assert [(asset.media_type, asset.torrent_id) for asset in branch.library.assets(emma)] == [("text", hash_of(1)), ("audio", hash_of(2))]
    assert (branch.library.assets(other), [book.state for book in branch.library.books()]) == ([], ["Library", "Library"])


def test_a_crash_before_the_end_of_the_commit_leaves_nothing_on_the_shelf(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    emma = branch.library.add_book("Emma").id
    id = branch.start(book=emma).id
    branch.run()
    complete(going(qbittorrent))
    branch.worker.crash_at(Point.IN_COMMIT)
    with pytest.raises(Crashed):
        branch.later()
    assert (branch.seen(id).status, branch.library.assets(emma), branch.library.books()[0].state) == ("queued", [], "Archive")
    branch.later(31)
    assert (branch.seen(id).status, len(branch.library.assets(emma)), branch.path(id)) == ("completed", 1, COMPLETED)


# ---------------------------------------------------------------- what goes wrong there
@pytest.mark.parametrize("state", ["error", "missingFiles"])
@pytest.mark.parametrize("begun", [False, True])
def test_an_error_state_of_qbittorrent_fails_the_download(branch: Branch, qbittorrent: FakeQbittorrent, state: str, begun: bool) -> None:
    id = branch.start().id
    branch.run()
    record = going(qbittorrent)
    if begun:
        branch.later()
    record.state = state
    branch.later()
    assert (branch.seen(id).status, branch.seen(id).failure_reason, branch.seen(id).completed_at_utc) == ("failed", f"qbittorrent_error: {state}", None)
    assert branch.path(id) == ([*BEGUN, ("downloading", "failed")] if begun else [*QUEUED, ("queued", "failed")])


def test_a_torrent_that_reappears_within_its_grace_is_followed_on(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    branch.run()
    going(qbittorrent)
    branch.later()
    record = qbittorrent.remove(hash_of(1))
    branch.later()
    first = branch.clock.now()
    for _ in range(3):
        assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc) == ("downloading", first)
        branch.later()
    qbittorrent.torrents[hash_of(1)] = record
    branch.later(14.9)
    branch.later(0.1)
    assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc) == ("downloading", None)
    qbittorrent.remove(hash_of(1))
    branch.later()
    assert branch.seen(id).first_not_found_at_utc == branch.clock.now()
    qbittorrent.torrents[hash_of(1)] = record
    complete(record)
    branch.later()
    assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc, branch.path(id)) == ("completed", None, COMPLETED)


@pytest.mark.parametrize("begun", [False, True])
def test_a_torrent_that_stays_away_for_a_minute_fails_the_download(branch: Branch, qbittorrent: FakeQbittorrent, begun: bool) -> None:
    id = branch.start().id
    branch.run()
    going(qbittorrent, state="downloading" if begun else "queuedDL")
    branch.later()
    qbittorrent.remove(hash_of(1))
    branch.later()
    first = branch.clock.now()
    for _ in range(4):
        assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc) == ("downloading" if begun else "queued", first)
        branch.later()
    seen = branch.seen(id)
    assert (seen.status, seen.failure_reason, seen.first_not_found_at_utc) == ("failed", "missing_external_job", first)
    assert (branch.clock.now() - first).total_seconds() == 60


def test_while_qbittorrent_is_stopped_no_download_fails_and_it_is_asked_less_often(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    id = branch.start().id
    branch.run()
    record = going(qbittorrent)
    branch.later()
    qbittorrent.down()
    pauses = []
    for _ in range(8):
        branch.later()
        pauses.append(branch.app.executions(id)[0].next_check_at)
    (outside,) = branch.app.status().outside
    assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc) == ("downloading", None)
    assert (outside.kind, outside.handed, outside.down_since is not None, "qBittorrent" in (outside.error or "")) == ("download", 1, True, True)
    assert outside.failures == 4
    assert len(set(pauses)) == outside.failures
    qbittorrent.up()
    complete(record)
    branch.later(300)
    assert (branch.seen(id).status, branch.path(id)) == ("completed", COMPLETED)
    assert branch.app.status().outside[0].error is None


@pytest.mark.parametrize("trouble", ["restarted", "its sessions ended", "an error of its own"])
def test_a_passing_trouble_of_qbittorrent_costs_no_download(branch: Branch, qbittorrent: FakeQbittorrent, trouble: str) -> None:
    id = branch.start().id
    branch.run()
    record = going(qbittorrent)
    match trouble:
        case "restarted":
            qbittorrent.down()
            qbittorrent.expire_sessions()
            qbittorrent.up()
        case "its sessions ended":
            qbittorrent.expire_sessions()
        case _:
            qbittorrent.fail_with(503)
            branch.later()
            qbittorrent.fail_with(None)
    assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc) == ("queued", None)
    branch.later(2 * POLL)
    assert branch.seen(id).status == "downloading"
    complete(record)
    branch.later()
    assert branch.path(id) == COMPLETED


def test_a_qbittorrent_that_is_too_slow_is_asked_again_later(database_url: str, qbittorrent: FakeQbittorrent, tmp_path: Path) -> None:
    impatient, gate = Qbittorrent(qbittorrent.url, qbittorrent.username, qbittorrent.password, timeout=1.0), threading.Event()
    with kit.branch(database_url, impatient, tmp_path) as branch:
        id = branch.start().id
        branch.run()
        going(qbittorrent)
        qbittorrent.slow(gate)
        branch.later()
        assert (branch.seen(id).status, branch.seen(id).first_not_found_at_utc, branch.app.status().outside[0].failures) == ("queued", None, 1)
        gate.set()
        branch.later(2 * POLL)
        assert (branch.seen(id).status, branch.app.status().outside[0].failures) == ("downloading", 0)

"""Promises about what becomes of a torrent when its download is cancelled: it goes when nobody needs it, and never from under anybody who does."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from apps.librarian import tables
from apps.librarian.client import Qbittorrent, Torrent
from apps.librarian.errors import LoginRefused, OutsideDown
from apps.librarian.source import Source
from apps.librarian.tables import Request
from apps.librarian.tests.kit import Branch, complete, going, hash_of, magnet, settle
from apps.librarian.tests.qbittorrent import FakeQbittorrent
from interlock import LeaseLost
from interlock.testing import Crashed, KitWorker, Point


class Interposed:
    """The client, with a hand in between: `meanwhile` happens once, when a call is about to be made."""

    def __init__(self, client: Qbittorrent) -> None:
        self._client = client
        self.meanwhile: dict[str, Callable[[], None]] = {}

    def _now(self, verb: str) -> None:
        if happens := self.meanwhile.pop(verb, None):
            happens()

    def add(self, source: Source, save_path: str) -> str:
        self._now("add")
        return self._client.add(source, save_path)

    def look(self, ids: Sequence[str]) -> Mapping[str, Torrent]:
        return self._client.look(ids)

    def remove(self, id: str) -> None:
        self._now("remove")
        self._client.remove(id)


@pytest.fixture
def client(qbittorrent: FakeQbittorrent) -> Interposed:
    return Interposed(Qbittorrent(qbittorrent.url, qbittorrent.username, qbittorrent.password))


def handed(branch: Branch, qbittorrent: FakeQbittorrent, *users: str) -> list[str]:
    """Downloads of one torrent, one by each of these users, on which qBittorrent is at work."""
    ids = [branch.start(user=branch.library.add_user(name).id).id for name in users]
    branch.run()
    if ids:
        going(qbittorrent)
        branch.later()
    assert {branch.seen(id).status for id in ids} <= {"downloading"}
    return ids


def removable(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """A torrent that nobody needs, since its download has failed, and a removal of it that waits, since another was cancelled before it began."""
    (failed,) = handed(branch, qbittorrent, "ann")
    record = qbittorrent.torrents[hash_of(1)]
    record.state = "error"
    branch.later()
    record.state = "downloading"
    branch.cancel(branch.start(user=branch.library.add_user("bob").id).id)
    assert (branch.seen(failed).status, branch.removals(), list(qbittorrent.torrents)) == ("failed", ["PENDING"], [hash_of(1)])


def told(qbittorrent: FakeQbittorrent) -> list[str]:
    """What qBittorrent was told to do, in order."""
    return [asked.path.partition("/")[2] for asked in qbittorrent.log if asked.path in ("torrents/add", "torrents/delete")]


def another(branch: Branch) -> None:
    """A second worker does all that is due."""
    KitWorker(branch.app, branch.clock).run_until_idle()


# ---------------------------------------------------------------- who needs it
def test_a_cancelled_download_is_ended_by_a_worker_and_its_torrent_goes_with_its_files(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    (id,) = handed(branch, qbittorrent, "ann")
    marked = branch.cancel(id)
    assert (marked.status, marked.being_canceled, marked.cancel_requested_at_utc) == ("downloading", True, branch.clock.now())
    settle(branch)
    assert (branch.seen(id).status, branch.seen(id).being_canceled, branch.removals(), qbittorrent.torrents) == ("canceled", False, ["SUCCEEDED"], {})
    (request,) = qbittorrent.asked("torrents/delete")
    assert (request.params["hashes"], request.params["deleteFiles"].lower()) == (hash_of(1), "true")
    assert branch.app.verify().ok


def test_the_removal_is_stored_with_the_cancellation_or_neither_is(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    (id,) = handed(branch, qbittorrent, "ann")
    branch.cancel(id)
    branch.worker.crash_at(Point.IN_COMMIT, kind="download")
    with pytest.raises(Crashed):
        branch.run()
    assert (branch.seen(id).status, branch.removals()) == ("downloading", [])
    branch.later(31)
    assert (branch.seen(id).status, len(branch.removals())) == ("canceled", 1)


def test_a_torrent_stays_until_the_last_of_its_downloads_is_cancelled(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    ann, bob = handed(branch, qbittorrent, "ann", "bob")
    branch.cancel(ann)
    settle(branch)
    assert (branch.seen(ann).status, branch.seen(bob).status, list(qbittorrent.torrents)) == ("canceled", "downloading", [hash_of(1)])
    branch.cancel(bob)
    settle(branch)
    assert (branch.seen(bob).status, qbittorrent.torrents, told(qbittorrent)) == ("canceled", {}, ["add", "add", "delete"])


def test_a_late_removal_leaves_a_newer_download_alone(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    removable(branch, qbittorrent)
    new = branch.start().id
    assert branch.removals() == ["PENDING"]
    settle(branch)
    branch.later()
    assert (branch.removals(), branch.seen(new).status) == (["SUCCEEDED"], "downloading")
    assert (list(qbittorrent.torrents), told(qbittorrent)) == ([hash_of(1)], ["add", "add"])


def test_a_removal_waits_for_a_download_that_is_just_being_stored(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """It looks only when it can see it: before, nobody could say whether the torrent is needed."""
    removable(branch, qbittorrent)
    request = Request(branch.library.add_user("cleo").id, branch.library.add_book("Emma").id, "text", magnet(1), hash_of(1))
    with ThreadPoolExecutor(1) as pool:
        with branch.librarian.engine.begin() as tx:
            tables.lock(tx, request.torrent_id)
            branch.librarian.fetch.using(conn=tx, unique_key=request.medium).enqueue(request)
            removing = pool.submit(another, branch)
            with pytest.raises(TimeoutError):
                removing.result(timeout=0.5)
        removing.result()
    settle(branch)
    assert (branch.removals(), list(qbittorrent.torrents), told(qbittorrent)) == (["SUCCEEDED"], [hash_of(1)], ["add", "add"])


def test_a_download_that_is_cancelled_after_another_has_finished_leaves_its_files(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """Theirs are the same files: an asset was made of them."""
    (ann,) = handed(branch, qbittorrent, "ann")
    complete(qbittorrent.torrents[hash_of(1)])
    branch.later()
    bob = branch.start().id
    branch.cancel(bob)
    settle(branch)
    assert (branch.seen(ann).status, branch.seen(bob).status, branch.removals()) == ("completed", "canceled", ["SUCCEEDED"])
    assert (list(qbittorrent.torrents), told(qbittorrent)) == ([hash_of(1)], ["add"])


def test_a_download_that_was_never_handed_over_leaves_nothing_to_remove(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    branch.cancel(branch.start().id)
    settle(branch)
    assert (branch.removals(), told(qbittorrent)) == (["SUCCEEDED"], [])


@pytest.mark.parametrize("category", ["films", "librarian"])
def test_a_torrent_that_was_there_before_us_is_not_ours_to_remove(branch: Branch, qbittorrent: FakeQbittorrent, tmp_path: Path, category: str) -> None:
    branch.start()
    branch.run()
    record = qbittorrent.torrents[hash_of(1)]
    record.category, record.save_path = category, str(tmp_path / "films")
    bob = branch.start().id
    branch.run()
    for job in branch.app.jobs(kind="download"):
        branch.cancel(job.id)
    settle(branch)
    assert (branch.seen(bob).status, branch.removals(), list(qbittorrent.torrents)) == ("canceled", ["SUCCEEDED", "SUCCEEDED"], [hash_of(1)])


# ---------------------------------------------------------------- between its look and its deed
def test_a_download_that_begins_while_its_torrent_is_being_removed_waits_and_is_added_afresh(
    branch: Branch, qbittorrent: FakeQbittorrent, client: Interposed,
) -> None:
    (old,) = handed(branch, qbittorrent, "ann")
    new: list[str] = []

    def begin() -> None:
        new.append(branch.start().id)
        another(branch)
        assert (branch.seen(new[0]).status, told(qbittorrent)) == ("queued", ["add"])

    client.meanwhile["remove"] = begin
    branch.cancel(old)
    settle(branch)
    assert (told(qbittorrent), list(qbittorrent.torrents)) == (["add", "delete", "add"], [hash_of(1)])
    assert (branch.seen(new[0]).external_job_id, branch.app.get(new[0]).tries_left) == (hash_of(1), 8)


def test_a_removal_waits_for_another_of_the_same_torrent(branch: Branch, qbittorrent: FakeQbittorrent, client: Interposed) -> None:
    first, second = handed(branch, qbittorrent, "ann", "bob")
    seen: list[list[str]] = []

    def look() -> None:
        another(branch)
        seen.append(branch.removals())

    client.meanwhile["remove"] = look
    branch.cancel(first)
    branch.cancel(second)
    settle(branch)
    assert sorted(seen[0]) == ["PENDING", "RUNNING"]
    assert (branch.removals(), told(qbittorrent)) == (["SUCCEEDED", "SUCCEEDED"], ["add", "add", "delete"])


def test_a_removal_that_failed_halfway_goes_on_before_a_newer_download_is_added(branch: Branch, qbittorrent: FakeQbittorrent, client: Interposed) -> None:
    (old,) = handed(branch, qbittorrent, "ann")

    def fail() -> None:
        raise OutsideDown("qBittorrent cannot be reached.")

    client.meanwhile["remove"] = fail
    branch.cancel(old)
    branch.run()
    branch.run()
    assert branch.removals() == ["PENDING"]
    new = branch.start().id
    branch.run()
    settle(branch)
    assert (told(qbittorrent), branch.removals(), branch.seen(new).external_job_id) == (["add", "delete", "add"], ["SUCCEEDED"], hash_of(1))


def test_a_removal_whose_login_is_refused_is_tried_again_only_after_a_minute(branch: Branch, qbittorrent: FakeQbittorrent, client: Interposed) -> None:
    (old,) = handed(branch, qbittorrent, "ann")

    def refuse() -> None:
        raise LoginRefused("qBittorrent refuses the user name.")

    client.meanwhile["remove"] = refuse
    branch.cancel(old)
    branch.run()
    branch.run()
    branch.later(59)
    assert (branch.removals(), told(qbittorrent)) == (["PENDING"], ["add"])
    branch.later(1)
    assert (branch.removals(), told(qbittorrent)) == (["SUCCEEDED"], ["add", "delete"])


@pytest.mark.parametrize("point", [Point.IN_PREPARE, Point.BEFORE_COMMIT])
def test_a_removal_whose_worker_dies_is_carried_to_its_end(branch: Branch, qbittorrent: FakeQbittorrent, point: Point) -> None:
    (old,) = handed(branch, qbittorrent, "ann")
    branch.cancel(old)
    branch.worker.crash_at(point, kind="remove")
    with pytest.raises(Crashed):
        settle(branch)
    new = branch.start().id
    branch.run()
    assert branch.seen(new).external_job_id is None or point is Point.IN_PREPARE
    branch.later(31)
    settle(branch)
    deleted = ["delete", "add"] if point is Point.BEFORE_COMMIT else ["add"]
    assert (told(qbittorrent), branch.removals(), branch.seen(new).external_job_id) == (["add", *deleted], ["SUCCEEDED"], hash_of(1))


def test_a_removal_that_loses_its_lease_is_carried_out_by_the_next(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    (old,) = handed(branch, qbittorrent, "ann")
    branch.cancel(old)
    branch.worker.lose_lease(Point.IN_PREPARE, kind="remove")
    settle(branch)
    new = branch.start().id
    settle(branch)
    assert (branch.removals(), told(qbittorrent), branch.seen(new).external_job_id) == (["SUCCEEDED"], ["add", "delete", "add"], hash_of(1))


class Late:
    """The run of a worker that stood still while its job was carried to its end by another: every verb of it is refused."""

    attempt, exec_id, cancelled, payload = 1, "", False, dict[str, object]()

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id

    def effect(self, *_: object, **__: object) -> NoReturn:
        raise LeaseLost("Another has done this.")


def test_a_removal_that_wakes_up_after_its_end_deletes_nothing_and_keeps_nobody_waiting(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    (old,) = handed(branch, qbittorrent, "ann")
    branch.cancel(old)
    settle(branch)
    removal = branch.app.jobs(kind="remove")[0]
    assert (removal.state, told(qbittorrent)) == ("SUCCEEDED", ["add", "delete"])
    with pytest.raises(LeaseLost):
        branch.librarian.remove(Late(removal.id), hash_of(1))
    new = branch.start().id
    branch.run()
    assert (branch.seen(new).external_job_id, told(qbittorrent)) == (hash_of(1), ["add", "delete", "add"])


# ---------------------------------------------------------------- when it does not end well
@pytest.mark.parametrize("end", ["FAILED", "CANCELLED"])
def test_a_removal_that_is_given_up_keeps_nobody_waiting(branch: Branch, qbittorrent: FakeQbittorrent, client: Interposed, end: str) -> None:
    (old,) = handed(branch, qbittorrent, "ann")
    branch.cancel(old)

    def fail() -> None:
        client.meanwhile["remove"] = fail
        raise OutsideDown("qBittorrent cannot be reached.")

    client.meanwhile["remove"] = fail
    branch.run()
    branch.run()
    assert branch.removals() == ["PENDING"]
    if end == "CANCELLED":
        branch.app.cancel(branch.app.jobs(kind="remove")[0].id, by="operator")
    for _ in range(20):
        branch.later(900)
    assert branch.removals() == [end]
    new = branch.start().id
    branch.run()
    assert (branch.seen(new).external_job_id, told(qbittorrent)) == (hash_of(1), ["add", "add"])


def test_what_a_worker_that_stood_still_added_for_a_cancelled_download_is_removed_again(
    branch: Branch, qbittorrent: FakeQbittorrent, client: Interposed,
) -> None:
    id = branch.start().id

    def cancelled() -> None:
        branch.cancel(id)
        another(branch)
        assert (branch.removals(), told(qbittorrent)) == (["SUCCEEDED"], [])

    client.meanwhile["add"] = cancelled
    branch.worker.lose_lease(Point.IN_PREPARE, kind="download")
    settle(branch)
    assert (branch.seen(id).status, told(qbittorrent), qbittorrent.torrents) == ("canceled", ["add", "delete"], {})


def test_a_download_that_is_cancelled_while_it_is_handed_over_leaves_nothing_behind(branch: Branch, qbittorrent: FakeQbittorrent, client: Interposed) -> None:
    id = branch.start().id

    def cancelled() -> None:
        branch.cancel(id)
        branch.worker.beat()

    client.meanwhile["add"] = cancelled
    settle(branch)
    assert (branch.seen(id).status, branch.path(id)[-1], told(qbittorrent), qbittorrent.torrents) == ("canceled", ("queued", "canceled"), ["add", "delete"], {})

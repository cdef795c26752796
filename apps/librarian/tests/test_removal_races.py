"""Removals that race with downloads, other removals, crashes and stale workers."""

from typing import NoReturn

import pytest

from apps.librarian.clients.qbittorrent import QbittorrentClient
from apps.librarian.errors import LoginRefused, QbittorrentUnavailable
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, run_removals
from apps.librarian.tests.removal_steps import InterposedClient, changes, hand_over, run_second_worker
from interlock import LeaseLost
from interlock.testing import Crashed, Failpoint


@pytest.fixture
def client(qbittorrent: FakeQbittorrent) -> InterposedClient:
    return InterposedClient(QbittorrentClient(qbittorrent.url, qbittorrent.username, qbittorrent.password))


# ---------------------------------------------------------------- races and crashes
def test_download_waits_while_its_torrent_is_being_removed(
    kit: LibrarianKit,
    qbittorrent: FakeQbittorrent,
    client: InterposedClient,
) -> None:
    (old,) = hand_over(kit, qbittorrent, "ann")
    new: list[str] = []

    def begin() -> None:
        new.append(kit.start().id)
        run_second_worker(kit)
        assert (kit.download(new[0]).status, changes(qbittorrent)) == ("queued", ["add"])

    client.before["remove"] = begin
    kit.cancel(old)
    run_removals(kit)
    assert (changes(qbittorrent), list(qbittorrent.torrents)) == (["add", "delete", "add"], [info_hash_of(1)])
    assert (kit.download(new[0]).external_job_id, kit.app.get(new[0]).tries_left) == (info_hash_of(1), 8)


def test_removal_waits_for_another_removal_of_the_same_torrent(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, client: InterposedClient
) -> None:
    first, second = hand_over(kit, qbittorrent, "ann", "bob")
    seen: list[list[str]] = []

    def look() -> None:
        run_second_worker(kit)
        seen.append(kit.removals())

    client.before["remove"] = look
    kit.cancel(first)
    kit.cancel(second)
    run_removals(kit)
    assert sorted(seen[0]) == ["PENDING", "RUNNING"]
    assert (kit.removals(), changes(qbittorrent)) == (["SUCCEEDED", "SUCCEEDED"], ["add", "add", "delete"])


def test_failed_removal_is_retried_before_a_newer_download_is_added(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, client: InterposedClient
) -> None:
    (old,) = hand_over(kit, qbittorrent, "ann")

    def fail() -> None:
        raise QbittorrentUnavailable("qBittorrent cannot be reached.")

    client.before["remove"] = fail
    kit.cancel(old)
    kit.run()
    kit.run()
    assert kit.removals() == ["PENDING"]
    new = kit.start().id
    kit.run()
    run_removals(kit)
    assert (changes(qbittorrent), kit.removals(), kit.download(new).external_job_id) == (
        ["add", "delete", "add"],
        ["SUCCEEDED"],
        info_hash_of(1),
    )


def test_removal_with_a_refused_login_is_retried_after_a_minute(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, client: InterposedClient
) -> None:
    (old,) = hand_over(kit, qbittorrent, "ann")

    def refuse() -> None:
        raise LoginRefused("qBittorrent refuses the user name.")

    client.before["remove"] = refuse
    kit.cancel(old)
    kit.run()
    kit.run()
    kit.run_after(59)
    assert (kit.removals(), changes(qbittorrent)) == (["PENDING"], ["add"])
    kit.run_after(1)
    assert (kit.removals(), changes(qbittorrent)) == (["SUCCEEDED"], ["add", "delete"])


@pytest.mark.parametrize("point", [Failpoint.IN_PREPARE, Failpoint.BEFORE_COMMIT])
def test_removal_is_finished_after_its_worker_crashed(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, point: Failpoint
) -> None:
    (old,) = hand_over(kit, qbittorrent, "ann")
    kit.cancel(old)
    kit.worker.crash_at(point, kind="remove")
    with pytest.raises(Crashed):
        run_removals(kit)
    new = kit.start().id
    kit.run()
    assert kit.download(new).external_job_id is None or point is Failpoint.IN_PREPARE
    kit.run_after(31)
    run_removals(kit)
    deleted = ["delete", "add"] if point is Failpoint.BEFORE_COMMIT else ["add"]
    assert (changes(qbittorrent), kit.removals(), kit.download(new).external_job_id) == (
        ["add", *deleted],
        ["SUCCEEDED"],
        info_hash_of(1),
    )


def test_removal_is_finished_after_its_lease_was_lost(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    (old,) = hand_over(kit, qbittorrent, "ann")
    kit.cancel(old)
    kit.worker.lose_lease(Failpoint.IN_PREPARE, kind="remove")
    run_removals(kit)
    new = kit.start().id
    run_removals(kit)
    assert (kit.removals(), changes(qbittorrent), kit.download(new).external_job_id) == (
        ["SUCCEEDED"],
        ["add", "delete", "add"],
        info_hash_of(1),
    )


class StaleRun:
    """The run of a stale worker, whose job another worker has finished. Every effect is refused."""

    attempt, exec_id, cancelled, payload = 1, "", False, dict[str, object]()

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id

    def effect(self, *_: object, **__: object) -> NoReturn:
        raise LeaseLost("Another worker has finished this job.")


def test_stale_removal_deletes_nothing_and_blocks_nothing(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    (old,) = hand_over(kit, qbittorrent, "ann")
    kit.cancel(old)
    run_removals(kit)
    removal = kit.app.jobs(kind="remove")[0]
    assert (removal.state, changes(qbittorrent)) == ("SUCCEEDED", ["add", "delete"])
    with pytest.raises(LeaseLost):
        kit.librarian.remove(StaleRun(removal.id), info_hash_of(1))
    new = kit.start().id
    kit.run()
    assert (kit.download(new).external_job_id, changes(qbittorrent)) == (info_hash_of(1), ["add", "delete", "add"])


# ---------------------------------------------------------------- canceled and failed removals
@pytest.mark.parametrize("end", ["FAILED", "CANCELLED"])
def test_removal_that_ended_without_success_blocks_nothing(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, client: InterposedClient, end: str
) -> None:
    (old,) = hand_over(kit, qbittorrent, "ann")
    kit.cancel(old)

    def fail() -> None:
        client.before["remove"] = fail
        raise QbittorrentUnavailable("qBittorrent cannot be reached.")

    client.before["remove"] = fail
    kit.run()
    kit.run()
    assert kit.removals() == ["PENDING"]
    if end == "CANCELLED":
        kit.app.cancel(kit.app.jobs(kind="remove")[0].id, by="operator")
    for _ in range(20):
        kit.run_after(900)
    assert kit.removals() == [end]
    new = kit.start().id
    kit.run()
    assert (kit.download(new).external_job_id, changes(qbittorrent)) == (info_hash_of(1), ["add", "add"])


def test_torrent_added_by_a_stale_worker_for_a_canceled_download_is_removed(
    kit: LibrarianKit,
    qbittorrent: FakeQbittorrent,
    client: InterposedClient,
) -> None:
    id = kit.start().id

    def cancelled() -> None:
        kit.cancel(id)
        run_second_worker(kit)
        assert (kit.removals(), changes(qbittorrent)) == (["SUCCEEDED"], [])

    client.before["add"] = cancelled
    kit.worker.lose_lease(Failpoint.IN_PREPARE, kind="download")
    run_removals(kit)
    assert (kit.download(id).status, changes(qbittorrent), qbittorrent.torrents) == ("canceled", ["add", "delete"], {})


def test_download_canceled_during_its_hand_over_leaves_no_torrent(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, client: InterposedClient
) -> None:
    id = kit.start().id

    def cancelled() -> None:
        kit.cancel(id)
        kit.worker.heartbeat()

    client.before["add"] = cancelled
    run_removals(kit)
    assert (kit.download(id).status, kit.transitions(id)[-1], changes(qbittorrent), qbittorrent.torrents) == (
        "canceled",
        ("queued", "canceled"),
        ["add", "delete"],
        {},
    )

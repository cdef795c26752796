"""The whole of it, for real: workers in processes of their own, a real qBittorrent and a real peer; and any of them killed in the middle."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.common.tests.databases import database
from apps.librarian.source import source
from apps.librarian.tests import processes, real
from apps.librarian.tests.processes import House
from apps.librarian.tests.real import Peer, RealQbittorrent, seeding

pytestmark = pytest.mark.real

COMPLETED = ["queued", "downloading", "completed"]
CANCELED = ["queued", "downloading", "canceled"]
SOON = 20.0
"""Seconds in which no lease ends."""


@contextmanager
def real_server(directory: Path) -> Iterator[RealQbittorrent]:
    with real.qbittorrent(directory) as server:
        # TCP only: a connection over UDP outlives, at its other end, the process that is killed, and the peer takes no second one from the same address.
        server.post("app/setPreferences", json='{"bittorrent_protocol": 1, "refresh_interval": 200}')
        yield server


@pytest.fixture
def house(tmp_path: Path, quick_path: Path) -> Iterator[House]:
    with database(None, quick_path, "librarian") as url, real_server(tmp_path) as server, processes.house(url, server, tmp_path) as house:
        yield house


@dataclass(frozen=True)
class Left:
    """Two downloads, and the peers that have what they want."""

    house: House
    handed: str
    night: Peer
    added: str
    dawn: Peer


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Left]:
    """What killed workers leave on PostgreSQL.

    The first was killed while its download was handed over. The second amid a question about that one, when it had just added the torrent of another
    download, and nobody had noted this yet. Both are free when a lease has ended, in thirty seconds: the tests in between are for those.
    """
    path = tmp_path_factory.mktemp("left")
    with (
        database(postgres_url, path, "librarian") as url, real_server(path) as server, processes.house(url, server, path) as house,
        seeding(path / "seed") as night, seeding(path / "seed", name="dawn.epub") as dawn, ExitStack() as until_killed,
    ):  # fmt: skip
        handed, first = house.start(night.torrent), house.worker()
        house.meet(handed, night)
        had = house.eventually(lambda: house.under_way(handed))
        house.kill_at_rest(first, handed)

        second = house.worker()
        house.eventually(lambda: house.under_way(handed, beyond=had), within=SOON)
        with house.standing_still():
            added = house.start(dawn.magnet)
            house.eventually(lambda: (attempt := house.execution(added)) and attempt.status == "IN_PROGRESS")
            until_killed.enter_context(house.unwritable(added))
        house.eventually(lambda: house.qbittorrent.look([source(dawn.magnet).id]))
        with house.standing_still():
            house.eventually(lambda: house.asked_about(handed))
            second.kill()
        until_killed.close()
        yield Left(house, handed, night, added, dawn)


def test_killed_workers_leave_everything_as_it_was(left: Left) -> None:
    house = left.house
    assert house.asked_about(left.handed)
    assert (house.path(left.handed), house.path(left.added)) == (["queued", "downloading"], ["queued"])
    assert (house.seen(left.added).external_job_id, len(house.app.executions(left.added))) == (None, 1)
    assert house.rows("SELECT count(*) FROM media_assets") == [(0,)]
    assert house.app.verify().ok


def test_a_torrent_and_a_magnet_link_are_really_downloaded(house: House, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night, seeding(tmp_path / "seed", name="night.m4b") as heard:
        book = house.library.add_book("Night and Day").id
        text, audio = house.start(night.torrent, book=book), house.start(heard.magnet, book=book, media_type="audio")
        assert (house.seen(text).source, house.seen(audio).source) == (f"torrent:{source(night.torrent).id}", heard.magnet)
        assert house.path(text) == house.path(audio) == ["queued"]
        house.worker()
        house.worker()
        house.meet(text, night)
        house.meet(audio, heard)
        house.eventually(lambda: house.under_way(text) and house.under_way(audio))
        assert ([found.state for found in house.library.books()], house.library.assets(book)) == (["Archive"], [])
        for id, peer in ((text, night), (audio, heard)):
            house.complete(id, peer)
            assert house.on_the_shelf(id, peer)
        assert house.path(text) == house.path(audio) == COMPLETED
    assert [found.state for found in house.library.books()] == ["Library"]
    assert house.app.verify().ok


def test_a_qbittorrent_that_is_killed_and_comes_back_costs_nothing_but_time(house: House, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night:
        id = house.start(night.torrent)
        house.worker()
        known = house.meet(id, night)
        house.eventually(lambda: house.under_way(id))
        house.server.stop(kill=True)
        house.eventually(lambda: house.app.status().outside[0].error)
        (outside,) = house.app.status().outside
        assert (outside.kind, outside.handed, house.app.status().calm) == ("download", 1, False)
        assert "cannot be reached" in (outside.error or "")
        assert (house.seen(id).status, house.seen(id).first_not_found_at_utc) == ("downloading", None)

        house.server.start()
        house.eventually(lambda: house.qbittorrent.look([known]))
        house.complete(id, night)
        assert (house.path(id), len(house.app.executions(id))) == (COMPLETED, 1)
        assert house.on_the_shelf(id, night)
    assert house.app.status().calm
    assert house.app.verify().ok


def test_a_torrent_that_is_deleted_behind_our_back_and_added_again_by_hand_is_followed_on(house: House, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night:
        id = house.start(night.torrent)
        house.worker()
        known = house.meet(id, night)
        house.eventually(lambda: house.under_way(id))
        house.server.post("torrents/delete", hashes=known, deleteFiles="true")
        missing = house.eventually(lambda: house.seen(id).first_not_found_at_utc)
        assert (house.seen(id).status, house.seen(id).first_not_found_at_utc) == ("downloading", missing)
        house.server.post("torrents/add", urls=night.magnet, savepath=str(house.settings.downloads / known))
        house.eventually(lambda: house.seen(id).first_not_found_at_utc is None)
        house.complete(id, night)
        assert house.path(id) == COMPLETED
        assert house.on_the_shelf(id, night)
    assert house.app.verify().ok


def test_the_last_of_two_who_cancel_takes_the_torrent_and_its_files_with_them(house: House, tmp_path: Path) -> None:
    with seeding(tmp_path / "seed") as night:
        ann, bob = house.start(night.torrent), house.start(night.magnet)
        house.worker()
        known = house.meet(ann, night)
        assert house.meet(bob, night) == known
        house.eventually(lambda: house.under_way(ann) and house.under_way(bob))
        file = Path(house.qbittorrent.look([known])[known].content_path)
        assert house.settings.downloads / known in file.parents

        house.cancel(ann)
        house.eventually(lambda: [job.state for job in house.app.jobs(kind="remove")] == ["SUCCEEDED"])
        assert (house.path(ann), house.seen(bob).status, list(house.qbittorrent.look([known]))) == (CANCELED, "downloading", [known])
        assert file.exists()

        house.cancel(bob)
        house.eventually(lambda: [job.state for job in house.app.jobs(kind="remove")] == ["SUCCEEDED"] * 2)
        assert (house.path(bob), house.qbittorrent.look([known])) == (CANCELED, {})
        house.eventually(lambda: not file.exists())
    assert house.rows("SELECT count(*) FROM media_assets") == [(0,)]
    assert house.app.verify().ok


def test_others_finish_what_killed_workers_left(left: Left) -> None:
    house = left.house
    house.worker()
    assert house.meet(left.added, left.dawn) == source(left.dawn.magnet).id
    for id, peer in ((left.added, left.dawn), (left.handed, left.night)):
        house.complete(id, peer)
        assert house.on_the_shelf(id, peer)
        assert house.path(id) == COMPLETED
    # What was handed over cost no try. What was not noted yet cost the one that a lost lease costs.
    spent = [(job.attempt, job.lease_losses, job.tries - job.tries_left) for job in map(house.app.get, (left.handed, left.added))]
    assert spent == [(1, 0, 0), (2, 1, 1)]
    assert house.rows("SELECT count(*) FROM media_assets") == [(2,)]
    assert house.app.verify().ok

"""Steps that the tests of removals share."""

from collections.abc import Callable, Mapping, Sequence

from apps.librarian.clients.qbittorrent import QbittorrentClient, Torrent
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, set_downloading
from apps.librarian.torrent_source import Source
from interlock.testing import KitWorker


class InterposedClient:
    """A client that runs a function of the test once, right before a call."""

    def __init__(self, client: QbittorrentClient) -> None:
        self._client = client
        self.before: dict[str, Callable[[], None]] = {}

    def _run_before(self, call: str) -> None:
        if function := self.before.pop(call, None):
            function()

    def add(self, source: Source, save_path: str) -> str:
        self._run_before("add")
        return self._client.add(source, save_path)

    def find_torrents(self, ids: Sequence[str]) -> Mapping[str, Torrent]:
        return self._client.find_torrents(ids)

    def remove(self, id: str) -> None:
        self._run_before("remove")
        self._client.remove(id)


def hand_over(kit: LibrarianKit, qbittorrent: FakeQbittorrent, *users: str) -> list[str]:
    """Downloads of one torrent, one per user, that qBittorrent is downloading."""
    ids = [kit.start(user=kit.service.add_user(name).id).id for name in users]
    kit.run()
    if ids:
        set_downloading(qbittorrent)
        kit.run_after()
    assert {kit.download(id).status for id in ids} <= {"downloading"}
    return ids


def leave_unneeded_torrent(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    """A torrent in qBittorrent whose download failed, and a waiting removal of it."""
    (failed,) = hand_over(kit, qbittorrent, "ann")
    record = qbittorrent.torrents[info_hash_of(1)]
    record.state = "error"
    kit.run_after()
    record.state = "downloading"
    kit.cancel(kit.start(user=kit.service.add_user("bob").id).id)
    assert (kit.download(failed).status, kit.removals(), list(qbittorrent.torrents)) == (
        "failed",
        ["PENDING"],
        [info_hash_of(1)],
    )


def changes(qbittorrent: FakeQbittorrent) -> list[str]:
    """The adds and deletes that qBittorrent received, in order."""
    return [
        asked.path.partition("/")[2] for asked in qbittorrent.log if asked.path in ("torrents/add", "torrents/delete")
    ]


def run_second_worker(kit: LibrarianKit) -> None:
    """Run every job that is due in a second worker."""
    KitWorker(kit.app, kit.clock).run_until_idle()

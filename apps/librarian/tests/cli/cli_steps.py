"""Steps that the tests of the command line share."""

from functools import partial

from apps.common.tests import command_runner
from apps.common.tests.command_runner import CommandResult
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import info_hash_of, set_complete, set_downloading

assert_refused = partial(command_runner.assert_refused, "librarian")


def started_id(result: CommandResult) -> str:
    """The id that the command `start` printed."""
    assert result.code == 0, result.err
    return result.out.split()[0]


def begin(qbittorrent: FakeQbittorrent) -> None:
    """qBittorrent has a quarter of the first torrent."""
    set_downloading(qbittorrent, size=1_000_000)


def finish(qbittorrent: FakeQbittorrent) -> None:
    """qBittorrent has the whole first torrent."""
    set_complete(qbittorrent.torrents[info_hash_of(1)], "uploading")

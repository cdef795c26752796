"""What the tests of the commands share."""

from functools import partial

import pytest

from apps.common.tests import commands
from apps.common.tests.commands import Said
from apps.librarian.tests.kit import hash_of
from apps.librarian.tests.qbittorrent import FakeQbittorrent

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""
refused = partial(commands.refused, "librarian")


def started(said: Said) -> str:
    assert said.code == 0, said.err
    return said.out.split()[0]


def begin(qbittorrent: FakeQbittorrent) -> None:
    record = qbittorrent.metadata(hash_of(1), name="emma.epub", size=1_000_000)
    record.state, record.progress = "downloading", 0.25


def finish(qbittorrent: FakeQbittorrent) -> None:
    record = qbittorrent.torrents[hash_of(1)]
    record.state, record.progress = "uploading", 1.0

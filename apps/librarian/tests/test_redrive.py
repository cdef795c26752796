"""Promises about a download that an operator has driven again, before a worker has seen it."""

import pytest

from apps.librarian.errors import Conflict
from apps.librarian.tests.kit import Branch, magnet
from apps.librarian.tests.qbittorrent import FakeQbittorrent


def test_a_download_that_was_driven_again_is_the_active_one_at_once(branch: Branch, qbittorrent: FakeQbittorrent) -> None:
    """The same request finds it, its user sees it, and another source is refused for it."""
    user, book = branch.library.add_user("ann").id, branch.library.add_book("Emma").id
    first = branch.start(user=user, book=book).id
    branch.run()
    next(iter(qbittorrent.torrents.values())).state = "error"
    branch.later()
    again = branch.app.redrive(first, by="olga").id
    assert [(each.id, each.status) for each in branch.library.downloads(user)] == [(again, "queued"), (first, "failed")]
    with pytest.raises(Conflict, match="from another source"):
        branch.library.start_download(user, book, "text", magnet(2))
    found = branch.start(user=user, book=book)
    assert (found.id, found.created, branch.library.download(user, again).status) == (again, False, "queued")

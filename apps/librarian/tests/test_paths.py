"""Promises about where downloads are: what cannot be seen from here stops nobody, and a directory has one name."""

import os
from pathlib import Path

import pytest

from apps.librarian.errors import BadSettings
from apps.librarian.settings import Settings
from apps.librarian.tests.kit import Branch, complete, going, hash_of
from apps.librarian.tests.qbittorrent import FakeQbittorrent


def test_what_may_not_be_looked_at_stops_no_download(branch: Branch, qbittorrent: FakeQbittorrent, monkeypatch: pytest.MonkeyPatch) -> None:
    """qBittorrent may run as another user, and keep its files to itself: the path is then judged as it is written."""
    ids = [branch.start(number).id for number in (1, 2)]
    branch.run()
    for number in (1, 2):
        complete(going(qbittorrent, number))
    look = os.stat

    def forbidden(path: object, *args: object, **kwargs: object) -> os.stat_result:
        if hash_of(1) in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, *args, **kwargs)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", forbidden)
    branch.later()
    assert [branch.seen(id).status for id in ids] == ["completed", "completed"]
    assert branch.app.status().calm


def test_a_directory_that_is_written_with_a_detour_is_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """qBittorrent answers with the plain path, and both must compare."""
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"LIBRARIAN_DOWNLOADS": "a/../b"}).downloads == tmp_path / "b"
    with pytest.raises(BadSettings, match="write it without"):
        Settings("sqlite:///x.db", "http://127.0.0.1:1", "reader", "a long password", tmp_path / "a" / ".." / "b")

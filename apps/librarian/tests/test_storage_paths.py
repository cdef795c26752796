"""Storage paths: a download must be inside the downloads directory, and unreadable paths stop nothing."""

import os
from pathlib import Path

import pytest

from apps.librarian.errors import BadSettings
from apps.librarian.jobs import is_inside
from apps.librarian.settings import Settings
from apps.librarian.tests.fake_qbittorrent import FakeQbittorrent
from apps.librarian.tests.librarian_kit import LibrarianKit, info_hash_of, set_complete, set_downloading


def test_download_outside_the_downloads_directory_fails(kit: LibrarianKit, qbittorrent: FakeQbittorrent) -> None:
    downloads, emma = kit.settings.downloads, kit.service.add_book("Emma").id
    paths = ["/etc/passwd", f"{downloads}", f"{downloads}/../../etc", f"{downloads}-of-others/emma", "emma.epub", ""]
    ids = [kit.start(number, book=emma).id for number, _ in enumerate(paths, 1)]
    kit.run()
    for number, path in enumerate(paths, 1):
        record = set_downloading(qbittorrent, number)
        set_complete(record)
        record.content_path = path
    kit.run_after()
    for id in ids:
        assert kit.download(id).status == "failed"
        assert (kit.download(id).failure_reason or "").startswith("unsafe_path: qBittorrent stores ")
    assert kit.service.assets(emma) == []


def test_link_out_of_the_downloads_directory_is_not_inside(tmp_path: Path) -> None:
    downloads, secret = tmp_path / "downloads", tmp_path / "secret"
    downloads.mkdir()
    secret.write_text("not a book")
    (downloads / "book").write_text("a book")
    (downloads / "out").symlink_to(secret)
    (downloads / "within").symlink_to(downloads / "book")
    (tmp_path / "door").symlink_to(downloads)
    assert is_inside(str(downloads / "book"), downloads)
    assert is_inside(str(downloads / "within"), downloads)
    assert is_inside(str(tmp_path / "door" / "book"), tmp_path / "door")
    assert is_inside(str(downloads / "not" / "here" / "yet"), downloads)
    assert not is_inside(str(downloads / "out"), downloads)


def test_unreadable_path_stops_no_download(
    kit: LibrarianKit, qbittorrent: FakeQbittorrent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """qBittorrent may run as another user with private files. The path is then judged as written."""
    ids = [kit.start(number).id for number in (1, 2)]
    kit.run()
    for number in (1, 2):
        set_complete(set_downloading(qbittorrent, number))
    stat = os.stat

    def forbidden(path: object, *args: object, **kwargs: object) -> os.stat_result:
        if info_hash_of(1) in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **kwargs)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", forbidden)
    kit.run_after()
    assert [kit.download(id).status for id in ids] == ["completed", "completed"]
    assert kit.app.status().healthy


def test_downloads_directory_is_normalized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """qBittorrent answers with the normalized path, and both are compared."""
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"LIBRARIAN_DOWNLOADS": "a/../b"}).downloads == tmp_path / "b"
    with pytest.raises(BadSettings, match="Write it without"):
        Settings("sqlite:///x.db", "http://127.0.0.1:1", "reader", "a long password", tmp_path / "a" / ".." / "b")

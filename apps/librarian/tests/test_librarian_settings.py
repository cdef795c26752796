"""The settings of the librarian, and its assembly from them."""

import importlib
from pathlib import Path

import pytest

from apps.librarian.assembly import LazyQbittorrent
from apps.librarian.errors import BadSettings, UnsafeCredentials
from apps.librarian.jobs import build
from apps.librarian.settings import Settings


def test_settings_come_from_the_environment_and_have_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    default = Settings.from_env({})
    assert (default.database, default.qbittorrent_url) == ("sqlite:///librarian.db", "http://127.0.0.1:8080")
    assert (default.poll, default.downloads) == (15.0, tmp_path / "downloads")
    assert (default.username, default.password, default.allow_default_credentials) == ("", "", False)
    given = Settings.from_env(
        {
            "LIBRARIAN_DATABASE_URL": "postgresql://db/library",
            "LIBRARIAN_QBITTORRENT_URL": "https://torrents",
            "LIBRARIAN_QBITTORRENT_USERNAME": "reader",
            "LIBRARIAN_QBITTORRENT_PASSWORD": "secret",
            "LIBRARIAN_DOWNLOADS": "/srv/books",
            "LIBRARIAN_POLL": "2.5",
            "LIBRARIAN_ALLOW_DEFAULT_CREDENTIALS": "1",
        }
    )
    assert given == Settings(
        "postgresql://db/library",
        "https://torrents",
        "reader",
        "secret",
        Path("/srv/books"),
        2.5,
        allow_default_credentials=True,
    )
    assert "secret" not in repr(given)
    assert not Settings.from_env({"LIBRARIAN_ALLOW_DEFAULT_CREDENTIALS": "yes"}).allow_default_credentials


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("POLL", "soon", "LIBRARIAN_POLL is 'soon', which is not a number"),
        ("POLL", "0", "greater than zero"),
        ("POLL", "nan", "greater than zero"),
        ("DATABASE_URL", "mysql://db/library", "must be a SQLite or PostgreSQL URL"),
    ],
)
def test_invalid_setting_is_refused(name: str, value: str, sentence: str) -> None:
    with pytest.raises(BadSettings, match=sentence):
        Settings.from_env({f"LIBRARIAN_{name}": value})


def test_importing_the_app_opens_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Looking at jobs needs no password."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("apps.librarian.app")
    assert (sorted(module.app.kinds), list(tmp_path.iterdir())) == (["download", "remove"], [])


@pytest.mark.parametrize(("username", "password"), [("", ""), ("admin", "adminadmin")])
def test_worker_with_unsafe_credentials_ends_at_its_start(tmp_path: Path, username: str, password: str) -> None:
    url = f"sqlite:///{tmp_path / 'library.db'}"
    client = LazyQbittorrent(Settings(url, "http://127.0.0.1:1", username, password, tmp_path))
    librarian = build(client.settings, client, lifespan=client.check_login)
    librarian.migrate()
    with pytest.raises(UnsafeCredentials):
        librarian.app.run_until_idle()
    librarian.close()

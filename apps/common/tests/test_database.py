"""The database of every application: only its user can read the file, and a process uses one SQLite library."""

import os
import stat
import sys
from pathlib import Path

import pysqlite3
import pytest
from sqlalchemy import Connection, Engine

from apps.common.application import Application
from apps.common.database import connect, usable
from apps.common.settings import database
from apps.librarian.settings import Settings
from interlock import App, Job, SyncRun


class Shelf(Application):
    """An application with one table."""

    def _make_tables(self) -> None:
        with self.engine.begin() as tx:
            tx.exec_driver_sql("CREATE TABLE IF NOT EXISTS shelf (book text)")


def shelf(url: str) -> Shelf:
    engine = connect(url)
    return Shelf(App(url, transaction=engine.begin), engine)


def modes(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite3"])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_file_is_for_its_user_alone_whatever_the_umask(tmp_path: Path, scheme: str, umask: int) -> None:
    """The journals beside it too, while it is written."""
    made, before = shelf(f"{scheme}:///{tmp_path / 'shelf.db'}"), os.umask(umask)
    try:
        made.migrate()
        with made.engine.begin() as tx:
            tx.exec_driver_sql("INSERT INTO shelf VALUES ('Emma')")
            found = modes(tmp_path)
    finally:
        os.umask(before)
        made.close()
    assert len(found) >= 2
    assert set(found.values()) == {0o600}


def test_file_that_exists_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "shelf.db").touch()
    (tmp_path / "shelf.db").chmod(0o640)
    made = shelf(f"sqlite:///{tmp_path / 'shelf.db'}")
    made.migrate()
    made.close()
    assert modes(tmp_path)["shelf.db"] == 0o640


def library_of(engine: Engine) -> str:
    with engine.connect() as connection:
        return type(connection.connection.driver_connection).__module__.partition(".")[0]


@pytest.mark.parametrize(("scheme", "library"), [("sqlite", "sqlite3"), ("sqlite+pysqlite3", "pysqlite3")])
def test_application_uses_the_sqlite_library_of_the_engine(tmp_path: Path, scheme: str, library: str) -> None:
    """Two libraries in one process that open one file drop each other's locks. A job and a row of ours commit together."""
    made = shelf(f"{scheme}:///{tmp_path / 'shelf.db'}")

    @made.app.job()
    def read(run: SyncRun, book: str) -> str:
        return book

    @read.commit
    def keep(tx: Connection, job: Job, book: str) -> None:
        tx.exec_driver_sql("INSERT INTO shelf VALUES (?)", (book,))

    made.migrate()
    with made.engine.begin() as tx:
        id = read.using(conn=tx).enqueue("Emma").id
    made.app.run_until_idle()
    with made.engine.begin() as tx:
        assert tx.exec_driver_sql("SELECT book FROM shelf").all() == [("Emma",)]
    assert (made.app.get(id).state, library_of(made.engine)) == ("SUCCEEDED", library)
    made.close()


@pytest.mark.parametrize("url", ["sqlite:///x.db", "sqlite+pysqlite3:///x.db", "postgresql://u@h/d"])
def test_every_application_takes_the_databases_that_the_engine_recommends(url: str, tmp_path: Path) -> None:
    assert {database(url, app) for app in ("studio", "courier")} == {url}
    assert Settings(url, "http://127.0.0.1:8080", "", "", tmp_path).database == url


def test_missing_library_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pysqlite3.sqlite_version
    monkeypatch.setitem(sys.modules, "pysqlite3", None)
    with pytest.raises(ValueError, match=r"^sqlite\+pysqlite3:// needs the extra `sqlite`: pip install '\.\[shelf,sqlite\]'\.$"), usable("shelf", ValueError):
        connect("sqlite+pysqlite3:///x.db")

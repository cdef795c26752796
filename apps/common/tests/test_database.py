"""The database of every application: file permissions, and one SQLite library per process."""

import os
import sqlite3
import stat
import sys
from pathlib import Path
from typing import Any

import psycopg
import pysqlite3
import pytest
from sqlalchemy import Connection, Engine

from apps.common.application import Application
from apps.common.database import make_engine, translate_database_errors
from apps.common.settings import check_database_url
from apps.librarian.settings import Settings
from interlock import App, Job, SyncRun


class Shelf(Application):
    """An application with one table."""

    def _create_tables(self) -> None:
        with self.engine.begin() as tx:
            tx.exec_driver_sql("CREATE TABLE IF NOT EXISTS shelf (book text)")


def shelf(url: str) -> Shelf:
    engine = make_engine(url)
    return Shelf(App(url, transaction=engine.begin), engine)


def modes(directory: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite3"])
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_only_the_owner_can_read_the_file_under_any_umask(tmp_path: Path, scheme: str, umask: int) -> None:
    """The journal files have the same permissions."""
    application, before = shelf(f"{scheme}:///{tmp_path / 'shelf.db'}"), os.umask(umask)
    try:
        application.migrate()
        with application.engine.begin() as tx:
            tx.exec_driver_sql("INSERT INTO shelf VALUES ('Emma')")
            found = modes(tmp_path)
    finally:
        os.umask(before)
        application.close()
    assert len(found) >= 2
    assert set(found.values()) == {0o600}


def test_connection_in_use_when_the_application_closes_is_closed_when_it_is_returned(database_url: str) -> None:
    """A thread of a web server may still query when the process stops."""
    application = shelf(database_url)
    used = application.engine.connect()
    driver: Any = used.connection.dbapi_connection
    application.close()
    used.exec_driver_sql("SELECT 1")
    used.close()
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        driver.execute("SELECT 1")


def test_connection_opened_after_the_application_closes_is_closed_when_it_is_returned(database_url: str) -> None:
    application = shelf(database_url)
    application.close()
    late = application.engine.connect()
    driver: Any = late.connection.dbapi_connection
    late.close()
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        driver.execute("SELECT 1")


def test_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "shelf.db").touch()
    (tmp_path / "shelf.db").chmod(0o640)
    application = shelf(f"sqlite:///{tmp_path / 'shelf.db'}")
    application.migrate()
    application.close()
    assert modes(tmp_path)["shelf.db"] == 0o640


def library_of(engine: Engine) -> str:
    with engine.connect() as connection:
        return type(connection.connection.driver_connection).__module__.partition(".")[0]


@pytest.mark.parametrize(("scheme", "library"), [("sqlite", "sqlite3"), ("sqlite+pysqlite3", "pysqlite3")])
def test_application_uses_the_sqlite_library_of_interlock(tmp_path: Path, scheme: str, library: str) -> None:
    """Two libraries in one process would drop each other's file locks. A job and a row commit together."""
    application = shelf(f"{scheme}:///{tmp_path / 'shelf.db'}")

    @application.app.job()
    def read(run: SyncRun, book: str) -> str:
        return book

    @read.commit
    def keep(tx: Connection, job: Job, book: str) -> None:
        tx.exec_driver_sql("INSERT INTO shelf VALUES (?)", (book,))

    application.migrate()
    with application.engine.begin() as tx:
        id = read.using(conn=tx).enqueue("Emma").id
    application.app.run_until_idle()
    with application.engine.begin() as tx:
        assert tx.exec_driver_sql("SELECT book FROM shelf").all() == [("Emma",)]
    assert (application.app.get(id).state, library_of(application.engine)) == ("SUCCEEDED", library)
    application.close()


@pytest.mark.parametrize("url", ["sqlite:///x.db", "sqlite+pysqlite3:///x.db", "postgresql://u@h/d"])
def test_every_application_accepts_the_databases_that_interlock_supports(url: str, tmp_path: Path) -> None:
    assert {check_database_url(url, app) for app in ("studio", "courier")} == {url}
    assert Settings(url, "http://127.0.0.1:8080", "", "", tmp_path).database == url


def test_missing_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pysqlite3.sqlite_version
    monkeypatch.setitem(sys.modules, "pysqlite3", None)
    with (
        pytest.raises(
            ValueError, match=r"^sqlite\+pysqlite3:// needs the extra `sqlite`: pip install '\.\[shelf,sqlite\]'\.$"
        ),
        translate_database_errors("shelf", ValueError),
    ):
        make_engine("sqlite+pysqlite3:///x.db")

"""Test kit with real processes: workers and commands that a test kills at a chosen point, on one database."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import text

from apps.common.database import engine_table_name, read_only
from apps.common.tests.app_process import PROCESS_TIMEOUT, AppProcess, ForkedProcess
from apps.common.tests.waiting import wait_until
from apps.studio import ledger_check
from apps.studio.assembly import studio_from_settings
from apps.studio.ledger import Balance
from apps.studio.orders import Orders
from apps.studio.settings import Settings
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.users import Users
from interlock import Job

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
SOON = 90.0
"""Seconds within which everything here happens, a backoff too, even on a crowded machine."""
ENDLESS = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"


class Command(ForkedProcess):
    preload = ("apps.studio.cli", "apps.studio.web.server", "apps.studio.clients.openai_images")


class ProcessKit:
    """One database, one provider, one directory of originals, one user with ten credits, and the studio's processes."""

    def __init__(self, url: str, images: FakeImages, directory: Path) -> None:
        self.images, self._directory, self.files = images, directory, directory / "files"
        given = {
            "database_url": url, "storage": str(self.files), "provider": "openai", "api_url": images.url,
            "api_key": images.api_key,
            "model": "gpt-image-1",
        }  # fmt: skip
        self.studio = studio_from_settings(Settings.model_validate(given))
        self.app, self.programs = self.studio.app, list[AppProcess]()
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("STUDIO_")}
        self._environment = (
            theirs | {"PYTHONPATH": str(ROOT)} | {f"STUDIO_{name.upper()}": value for name, value in given.items()}
        )
        self.studio.migrate()
        self.user = Users(self.studio).add("ann", credits=10)

    # ------------------------------------------------------------ processes
    def run(self, *arguments: str) -> AppProcess:
        log = self._directory / f"{len(self.programs)}-{arguments[0]}.log"
        # The name identifies the PostgreSQL session.
        self.programs.append(Command(["apps.studio", *arguments], log, self._environment | {"PGAPPNAME": log.stem}))
        return self.programs[-1]

    def worker(self) -> AppProcess:
        made = self.run("worker")
        self.until(lambda: "making up to" in made.log or made.code is not None, "the worker is ready", PROCESS_TIMEOUT)
        return made

    def close(self) -> None:
        """Kill all remaining processes by their IDs."""
        for program in self.programs:
            if program.code is None:
                program.kill()
        self.studio.close()

    # ------------------------------------------------------------ observations
    def order(self, prompt: str = "a lighthouse in the fog") -> str:
        return Orders(self.studio).create_job(self.user.id, prompt).id

    def until(self, check: Callable[[], T], what: str, within: float = SOON) -> T:
        """Wait until `check` returns a true value, and return it."""
        try:
            return wait_until(check, what, within)
        except AssertionError as error:
            logs = "\n".join(f"--- {program.name} {program.code}\n{program.log}" for program in self.programs)
            raise AssertionError(f"{error}\n{self.app.jobs()}\n{logs}") from None

    def ended(self, id: str) -> Job:
        return self.until(lambda: job if (job := self.app.get(id)).ended else None, "the job has ended")

    def balance(self) -> Balance:
        return Users(self.studio).balance(self.user.id)

    def kept(self) -> list[str]:
        """The names of the stored images."""
        there = self.files / "originals"
        return (
            sorted(path.name for path in there.iterdir() if re.fullmatch(r"[0-9a-f-]{36}", path.name))
            if there.exists()
            else []
        )

    def assert_consistent(self) -> None:
        """Assert that neither the ledger check nor the engine finds a fault."""
        assert ledger_check.check(self.studio)[1] == []
        assert self.app.verify().ok

    # ------------------------------------------------------------ faults
    def lease_ends(self) -> None:
        """Expire all leases, as if their time had passed."""
        executions = engine_table_name(self.studio.engine.dialect, "executions")
        self._write(
            f"UPDATE {executions} SET lease_expires_at = heartbeat_at WHERE status IN ('LEASED', 'IN_PROGRESS')"
        )

    @contextmanager
    def endless(self, verb: str, table: str, when: str) -> Iterator[Callable[[AppProcess], None]]:
        """Block any process that writes such a row. Yields a function that waits for a blocked program and kills it."""
        dialect = self.studio.engine.dialect
        named = engine_table_name(dialect, table) if table in ("jobs", "receipts") else table  # type: ignore[arg-type]
        if dialect.name == "sqlite":
            self._write(f"CREATE TRIGGER endless BEFORE {verb} ON {named} WHEN {when} BEGIN {ENDLESS}; END")
        else:
            self._write(
                "CREATE FUNCTION endless() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM "
                "pg_sleep(3600); RETURN NEW; END $$"
            )
            self._write(
                f"CREATE TRIGGER endless BEFORE {verb} ON {named} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION endless()"
            )
        yield self._killed
        if dialect.name == "postgresql":
            # A busy session does not notice that its client is gone.
            self._read(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = "
                "current_database() AND wait_event = 'PgSleep'"
            )
        self._write("DROP TRIGGER endless" if dialect.name == "sqlite" else f"DROP TRIGGER endless ON {named}")

    def _killed(self, program: AppProcess) -> None:
        self.until(lambda: self._stuck(program), f"{program.name} is where it will never get on")
        program.kill()

    def _stuck(self, program: AppProcess) -> bool:
        if self.studio.engine.dialect.name == "postgresql":
            return (
                self._read(
                    f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{program.name}' AND "
                    "wait_event = 'PgSleep'"
                )
                != []
            )
        file = sqlite3.connect(str(self.studio.engine.url.database), timeout=1.0, isolation_level=None)
        try:
            file.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            # The file was locked for a second: no other transaction here takes that long.
            return True
        finally:
            file.close()
        return False

    def _read(self, sql: str) -> list[object]:
        with read_only(self.studio.engine).begin() as tx:
            return [tuple(row) for row in tx.execute(text(sql))]

    def _write(self, sql: str) -> None:
        with self.studio.engine.begin() as tx:
            tx.exec_driver_sql(sql)


@contextmanager
def process_kit(url: str, images: FakeImages, directory: Path) -> Iterator[ProcessKit]:
    """A kit on an empty database. At the end, remaining processes exit with 0 and the ledger is consistent."""
    made = ProcessKit(url, images, directory)
    try:
        yield made
        assert {program.terminate() for program in made.programs if program.code is None} <= {0}
        made.assert_consistent()
    finally:
        made.close()

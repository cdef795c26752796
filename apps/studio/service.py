"""The service behind the command line: all operations of the studio, for all users."""

import getpass
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Select, Text, cast

from apps.common.cli_base import open_application
from apps.common.database import missing_tables_message, read_only, table_exists
from apps.common.job_ids import MIN_PREFIX, is_id, parse_id_prefix

from .assembly import studio_from_settings
from .dead_letters import DeadLetters
from .errors import BadSettings, NotFound, StudioError
from .gallery import VIEW, Gallery, Job, job_from_row
from .jobs import Studio
from .orders import Orders
from .settings import Settings
from .tables import jobs
from .users import Users

PROGRAM = "python -m apps.studio"


class CommandError(StudioError):
    """Wrong usage of a command. Nothing was changed."""


class NotMigrated(StudioError):
    """The database does not contain the studio's tables. Nothing was created."""


class Service:
    """All operations on a migrated database. Reading never creates a database file."""

    def __init__(self, studio: Studio, settings: Settings) -> None:
        if not table_exists(studio.engine, jobs.name):
            raise NotMigrated(missing_tables_message(studio.engine, "studio"))
        self.studio, self._settings = studio, settings
        self.users, self.orders, self.gallery, self.dead_letters = (
            Users(studio),
            Orders(studio),
            Gallery(studio),
            DeadLetters(studio),
        )

    def find_job(self, id: str) -> Job:
        """Find a job of any user by its ID or a unique prefix of it."""
        sought = _id_prefix(id)
        found = self._read(
            VIEW.where(jobs.c.id == sought if is_id(sought) else cast(jobs.c.id, Text).startswith(sought)).order_by(
                jobs.c.id
            ),
            2,
        )
        if not found:
            raise NotFound(f"No job has the ID {sought}. `jobs` lists all jobs.")
        if len(found) > 1:
            raise CommandError(
                f"Several jobs begin with {sought}, such as {found[0].id} and {found[1].id}. Give a longer prefix."
            )
        return found[0]

    def jobs(self, name: str | None, limit: int) -> list[Job]:
        """The newest jobs of this user, or of all users, newest first."""
        asked = VIEW if name is None else VIEW.where(jobs.c.userId == self.users.named(name).id)
        return self._read(asked.order_by(jobs.c.id.desc()), limit)

    def _read(self, asked: Select[tuple[object, ...]], limit: int) -> list[Job]:
        with read_only(self.studio.engine).begin() as tx:
            return [job_from_row(row) for row in tx.execute(asked.limit(limit)).mappings()]

    def stored_at(self, job: Job) -> str | None:
        """The path or address of a completed job's picture."""
        if job.result_path is None:
            return None
        return (
            f"{self._settings.storage}/{job.result_path}"
            if self._settings.bucket
            else str(Path(self._settings.storage).expanduser() / job.result_path)
        )

    def no_worker_warning(self) -> str | None:
        """A warning if no worker is running, else None."""
        orphaned = self.studio.image.name in self.studio.app.status().orphaned_kinds
        return (
            f"No worker is running, so no picture will be made. Start one with `{PROGRAM} run`." if orphaned else None
        )


# ---------------------------------------------------------------- for commands
@contextmanager
def open_studio() -> Generator[tuple[Studio, Settings]]:
    """Build the studio from the settings in the environment. It opens no connection yet."""
    settings = Settings.read()
    with open_application("studio", lambda: studio_from_settings(settings), BadSettings) as studio:
        yield studio, settings


@contextmanager
def open_service() -> Generator[Service]:
    """Build the service from the settings in the environment. Raises `NotMigrated` if there are no tables."""
    with open_studio() as (studio, settings):
        yield Service(studio, settings)


def operator() -> str:
    """The name of the operating system's user, for the audit."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return "an operator"


def _id_prefix(id: str) -> str:
    if (sought := parse_id_prefix(id)) is None:
        raise CommandError(
            f"{id[:200]!r} is not a job ID. Use an ID from `jobs`, or a prefix of at least {MIN_PREFIX} characters."
        )
    return sought

"""The studio as its staff see it, at the command line: everybody's jobs, by the beginnings of their ids."""

import getpass
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Select, Text, cast

from apps.common.database import no_tables, reading, there
from apps.common.ids import SHORTEST, beginning, is_id
from apps.common.program import made

from .assembly import assembled
from .counter import Counter
from .errors import BadSettings, NotFound, StudioError
from .gallery import VIEW, Gallery, Job, job_of
from .jobs import Studio
from .people import People
from .review import Review
from .settings import Settings
from .tables import jobs

PROGRAM = "python -m apps.studio"


class Miscalled(StudioError):
    """A command was called in a way that can never work. Nothing was changed."""


class NotReady(StudioError):
    """The database has no tables of the studio. Nothing was made there."""


class Desk:
    """Everything that the staff do, on a database that was migrated. Looking makes no file."""

    def __init__(self, studio: Studio, settings: Settings) -> None:
        if not there(studio.engine, jobs.name):
            raise NotReady(no_tables(studio.engine, "studio"))
        self.studio, self._settings = studio, settings
        self.people, self.counter, self.gallery, self.review = People(studio), Counter(studio), Gallery(studio), Review(studio)

    def found(self, id: str) -> Job:
        """The job of this id, or of the only one that begins so, whoever's it is."""
        sought = _beginning(id)
        found = self._read(VIEW.where(jobs.c.id == sought if is_id(sought) else cast(jobs.c.id, Text).startswith(sought)).order_by(jobs.c.id), 2)
        if not found:
            raise NotFound(f"There is no job {sought}: `jobs` shows all there are.")
        if len(found) > 1:
            raise Miscalled(f"Several jobs begin with {sought}, such as {found[0].id} and {found[1].id}: give more of the id.")
        return found[0]

    def jobs(self, name: str | None, limit: int) -> list[Job]:
        """The newest jobs of this user, or of everybody, newest first."""
        asked = VIEW if name is None else VIEW.where(jobs.c.userId == self.people.named(name).id)
        return self._read(asked.order_by(jobs.c.id.desc()), limit)

    def _read(self, asked: Select[tuple[object, ...]], limit: int) -> list[Job]:
        with reading(self.studio.engine).begin() as tx:
            return [job_of(row) for row in tx.execute(asked.limit(limit)).mappings()]

    def stored_at(self, job: Job) -> str | None:
        """Where the picture of a completed job is."""
        if job.result_path is None:
            return None
        return f"{self._settings.storage}/{job.result_path}" if self._settings.bucket else str(Path(self._settings.storage).expanduser() / job.result_path)

    def unstaffed(self) -> str | None:
        """That no worker runs, if so."""
        orphaned = self.studio.image.name in self.studio.app.status().orphaned_kinds
        return f"No worker runs, so nothing will move: start one with `{PROGRAM} run`." if orphaned else None


# ---------------------------------------------------------------- what a command works on
@contextmanager
def opened() -> Generator[tuple[Studio, Settings]]:
    """The studio of the environment's settings. It opens nothing yet."""
    settings = Settings.read()
    with made("studio", lambda: assembled(settings), BadSettings) as studio:
        yield studio, settings


@contextmanager
def staffed() -> Generator[Desk]:
    """The same, on a database that was migrated."""
    with opened() as (studio, settings):
        yield Desk(studio, settings)


def operator() -> str:
    """Who is at the terminal, for the audit."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return "an operator"


def _beginning(id: str) -> str:
    if (sought := beginning(id)) is None:
        raise Miscalled(f"{id[:200]!r} is no job's id: `jobs` shows them, and their first {SHORTEST} characters or more will do.")
    return sought

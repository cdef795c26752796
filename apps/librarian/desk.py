"""The library as its staff see it, at the command line: everybody's downloads, and people by their names."""

import re

from sqlalchemy import Text, cast, select

from apps.common.database import no_tables, there
from apps.common.ids import SHORTEST, beginning

from .errors import LibrarianError, NotFound
from .library import Download, Library, User
from .tables import download_jobs, downloads, users

PROGRAM = "python -m apps.librarian"


class Miscalled(LibrarianError):
    """A command was called in a way that can never work. Nothing was changed."""


class NotReady(LibrarianError):
    """The database has no tables of the librarian. Nothing was made there."""


class Desk(Library):
    """A `Library`, and what only its staff may ask."""

    def check(self) -> None:
        """`NotReady` unless the database was migrated. Looking makes no file."""
        if not there(self._engine, download_jobs.name):
            raise NotReady(no_tables(self._engine, "librarian"))

    # ------------------------------------------------------------ people
    def users(self) -> list[User]:
        """Everybody, in the order in which they were added."""
        with self._reading.begin() as tx:
            return [User(row.id, row.name) for row in tx.execute(select(users.c.id, users.c.name).order_by(users.c.id))]

    def user(self, given: str | None) -> User:
        """The user of this id or name; of nobody said, the only one there is."""
        everybody = self.users()
        if given is None:
            found = everybody
        elif given.isascii() and given.isdecimal():
            found = [user for user in everybody if str(user.id) == given]
        else:
            found = [user for user in everybody if user.name == given]
        if len(found) == 1:
            return found[0]
        if not found:
            raise NotFound(f"There is no user {'yet' if given is None else given}: add one with `user add NAME`.")
        ids = ", ".join(f"{user.id} ({user.name})" for user in found[:10])
        raise Miscalled(f"It is not clear for whom: give --user with one of the ids {ids}{', …' if len(found) > 10 else ''}.")

    # ------------------------------------------------------------ downloads
    def every_download(self) -> list[Download]:
        """All there are, newest first."""
        return sorted((each for user in self.users() for each in self.downloads(user.id)), key=lambda each: each.id, reverse=True)

    def found(self, id: str) -> Download:
        """The download of this id, or of the only one that begins so, whoever's it is."""
        sought = _beginning(id)
        with self._reading.begin() as tx:
            asked = select(downloads.c.job_id, downloads.c.user_id).where(cast(downloads.c.job_id, Text).startswith(sought))
            found = tx.execute(asked.order_by(downloads.c.job_id).limit(2)).all()
        if not found:
            raise NotFound(f"There is no download {sought}: `list` shows all there are.")
        if len(found) > 1:
            raise Miscalled(f"Several downloads begin with {sought}, such as {found[0].job_id} and {found[1].job_id}: give more of the id.")
        return self.download(found[0].user_id, found[0].job_id)

    def stored_at(self, download: Download) -> str | None:
        """Where a completed download was put."""
        return self._librarian.app.get(download.id).result["path"] if download.status == "completed" else None

    def unstaffed(self) -> str | None:
        """That no worker runs, if so."""
        kind = self._librarian.fetch.name
        return f"No worker runs, so nothing will move: start one with `{PROGRAM} run`." if kind in self._librarian.app.status().orphaned_kinds else None

    def warning(self) -> str | None:
        """Why downloads do not move at the moment, as far as the engine knows."""
        down = [outside.error for outside in self._librarian.app.status().outside if outside.error is not None]
        # The engine puts the error's class before its sentence.
        away = f"qBittorrent cannot be asked at the moment, so nothing will move: {re.sub(r'^[A-Za-z_.]+: ', '', down[0])}" if down else None
        return self.unstaffed() or away


def _beginning(id: str) -> str:
    if (sought := beginning(id)) is None:
        raise Miscalled(f"{id!r} is no download's id: `list` shows them, and their first {SHORTEST} characters or more will do.")
    return sought

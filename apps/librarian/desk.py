"""The library as its staff see it, at the command line: everybody's downloads, and people by their names."""

import uuid
from pathlib import Path

from sqlalchemy import inspect, make_url, select

from .errors import LibrarianError, NotFound
from .library import Download, Library, User
from .tables import download_jobs, downloads, users


class Miscalled(LibrarianError):
    """A command was called in a way that can never work. Nothing was changed."""


class NotReady(LibrarianError):
    """The database has no tables of the librarian. Nothing was made there."""


class Desk(Library):
    """A `Library`, and what only its staff may ask."""

    @property
    def database(self) -> str:
        """Where the database is, without its password."""
        return self._engine.url.set(drivername=self._engine.dialect.name).render_as_string(hide_password=True)

    def check(self) -> None:
        """`NotReady` unless the database was migrated. Looking makes no file."""
        url = make_url(self._engine.url)
        file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        if (file is not None and not file.exists()) or not inspect(self._engine).has_table(download_jobs.name):
            raise NotReady(f"The librarian has no tables at {self.database}: make them with `migrate`, or name another place in LIBRARIAN_DATABASE_URL.")

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
        """The download of this id, whoever's it is."""
        try:
            known = str(uuid.UUID(id))
        except ValueError:
            raise Miscalled(f"{id!r} is no download's id: `list` shows them.") from None
        with self._reading.begin() as tx:
            owner: int | None = tx.scalar(select(downloads.c.user_id).where(downloads.c.job_id == known))
        if owner is None:
            raise NotFound(f"There is no download {known}: `list` shows all there are.")
        return self.download(owner, known)

    def shelved_at(self, download: Download) -> str | None:
        """Where that medium of the book lies, if it is here."""
        return next((asset.storage_path for asset in self.assets(download.book_id) if asset.media_type == download.media_type), None)

    def warning(self) -> str | None:
        """Why downloads do not move at the moment, as far as the engine knows."""
        status = self._librarian.app.status()
        if self._librarian.fetch.name in status.orphaned_kinds:
            return "No worker runs, so nothing will move: start one with `run`."
        down = [outside.error for outside in status.outside if outside.error is not None]
        return f"qBittorrent cannot be asked at the moment, so nothing will move: {down[0]}" if down else None

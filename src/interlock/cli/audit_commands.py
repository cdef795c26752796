"""`interlock audit archive`: the one door through which history leaves the database."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.status import Status

from ..errors import InterlockError
from ..job import AuditEntry
from ..stores.archive import line
from . import screen
from .target import AppOption, DatabaseOption, JsonOption, Miscalled, opened
from .words import UNITS, duration

BATCH = 1000

commands = typer.Typer(no_args_is_help=True, help="The history of jobs: take it out of the database.")


@commands.callback()
def audit() -> None:
    """The history of jobs: take it out of the database."""


@commands.command()
def archive(
    before: Annotated[str, typer.Option(metavar="AGE", help=f"Only of jobs whose last entry is older than this: a number and {UNITS}.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="A new file: one JSON object per line and entry.")],
    app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False,
) -> None:
    """Move the history of jobs that retention has deleted into a file, and print the file's sha256.

    Each batch is in the file, and on the disk, before its rows leave the database. If the command is interrupted, what is in the file may also still be in the
    database; nothing is in neither.

    Example: interlock audit archive --before 90d --to history.jsonl
    """
    age = duration(before, "--before")
    if to.exists():
        raise Miscalled(f"{to} is there already: name a new file, since an archive is never written over.")
    file, jobs = ArchiveFile(to), 0
    try:
        with opened(app, database) as chosen, Status("archiving", console=screen.console(stderr=True)) as status:
            store = chosen.database.store()
            while moved := store.archive(age=age or 0.0, write=file.write, limit=BATCH):
                file.settle()
                jobs += moved
                status.update(f"archiving: {jobs:,} jobs")
    finally:
        digest = file.close()
    _say(to, jobs, file.entries, digest, json)


def _say(file: Path, jobs: int, entries: int, digest: str | None, json: bool) -> None:
    if json:
        screen.as_json({"file": str(file) if digest else None, "jobs": jobs, "entries": entries, "sha256": digest})
    elif digest is None:
        screen.say("There is nothing to archive: no job that is gone has a history older than that. No file was made.")
    else:
        screen.say(f"{jobs:,} jobs, {entries:,} entries")
        screen.say(f"{digest}  {file}")


class ArchiveFile:
    """A new file that grows batch by batch. A batch that is handed out again, because its transaction was, takes its own place."""

    def __init__(self, path: Path) -> None:
        self.entries = 0
        self._path = path
        self._file: BinaryIO | None = None
        self._settled = 0
        self._pending = 0

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """The entries, on the disk when this returns."""
        try:
            file = self._file or self._create()
            file.seek(self._settled)
            file.truncate()
            file.write("".join(f"{line(entry)}\n" for entry in entries).encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise InterlockError(f"{self._path} cannot be written ({error.strerror}): what is not in it is still in the database.") from error
        self._pending = len(entries)

    def settle(self) -> None:
        """What was written last has left the database."""
        if self._file is not None:
            self._settled = self._file.tell()
            self.entries += self._pending

    def close(self) -> str | None:
        """The digest of the whole file; None if nothing was ever written."""
        if self._file is None:
            return None
        self._file.close()
        digest = hashlib.sha256()
        with self._path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def _create(self) -> BinaryIO:
        self._file = self._path.open("xb")
        # A file whose name is lost is lost too.
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return self._file

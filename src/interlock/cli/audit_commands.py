"""`interlock audit`: archives the history of deleted jobs and removes it from the database, or partitions history."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.status import Status

from ..app import App
from ..core.job import AuditEntry
from ..errors import InterlockError
from ..store.archive import line
from . import output
from .arguments import UNITS, duration
from .common_options import AppOption, CommandError, DatabaseOption, JsonOption, open_app

BATCH = 1000

commands = typer.Typer(no_args_is_help=True, help="Archive the history of deleted jobs, or partition all history.")


@commands.callback()
def audit() -> None:
    """Archive the history of deleted jobs, or partition all history."""


@commands.command()
def archive(
    to: Annotated[Path, typer.Option(metavar="FILE", help="A new file: one JSON object per line and entry.")],
    before: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help=f"Only jobs whose last entry is older than this: a number and {UNITS}. By default, the app's "
            "`audit` retention.",
        ),
    ] = None,
    app: AppOption = None,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Move the history of jobs that retention has deleted into a file, and print the file's sha256.

    Each batch is synced to disk before its rows are deleted from the database. If the command is interrupted, some
    entries may be in both places; no entry is lost.

    Example: interlock audit archive --before 90d --to history.jsonl
    """
    given = None if before is None else duration(before, "--before")
    if given is None and app is None:
        raise typer.BadParameter("give an age, or an app (-A) that sets an audit retention.", param_hint="--before")
    if to.exists():
        raise CommandError(f"{to} already exists: name a new file. An archive is never overwritten.")
    file, jobs = ArchiveFile(to), 0
    try:
        with open_app(app, database) as chosen, Status("archiving", console=output.make_console(stderr=True)) as status:
            age, store = _age(chosen, given), chosen.database.store()
            while moved := store.retention.archive(age=age, write=file.write, limit=BATCH):
                file.settle()
                jobs += moved
                status.update(f"archiving: {jobs:,} jobs")
            while store.retention.remove_archived(age=age, limit=BATCH):
                status.update("removing archived history")
    finally:
        digest = file.close()
    _say(to, jobs, file.entries, digest, json)


@commands.command()
def partition(app: AppOption = None, database: DatabaseOption = None) -> None:
    """Partition the history by month, so that an archived month is dropped as a whole. PostgreSQL only.

    The command locks the history and reads it once, in one transaction. Until it ends, no job is stored, claimed or
    finished. If it is interrupted, nothing has changed.

    Example: interlock audit partition --database postgresql://localhost/shop
    """
    with open_app(app, database) as chosen, Status("partitioning", console=output.make_console(stderr=True)):
        changed = chosen.database.store().retention.partition_audit()
    output.print_line(
        "The history is partitioned by month. Workers create the partitions of later months."
        if changed
        else "Nothing to change: the history is partitioned by month already."
    )


def _age(app: App[Any], given: float | None) -> float:
    if given is not None:
        return given
    if app.audit_retention is None:
        raise CommandError("The app sets no audit retention. Give --before AGE.")
    return app.audit_retention.age


def _say(file: Path, jobs: int, entries: int, digest: str | None, json: bool) -> None:
    if json:
        output.print_json({"file": str(file) if digest else None, "jobs": jobs, "entries": entries, "sha256": digest})
    elif digest is None:
        output.print_line("Nothing to archive: no deleted job has a history of that age. No file was created.")
    else:
        output.print_line(f"{jobs:,} jobs, {entries:,} entries")
        output.print_line(f"{digest}  {file}")


class ArchiveFile:
    """A new file, written batch by batch. A batch that is sent again after a retry overwrites itself."""

    def __init__(self, path: Path) -> None:
        self.entries = 0
        self._path = path
        self._file: BinaryIO | None = None
        self._settled = 0
        self._pending = 0

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Write the entries and sync them to disk."""
        try:
            file = self._file or self._create()
            file.seek(self._settled)
            file.truncate()
            file.write("".join(f"{line(entry)}\n" for entry in entries).encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise InterlockError(
                f"{self._path} cannot be written ({error.strerror}). The entries that are not in it are still in the "
                "database."
            ) from error
        self._pending = len(entries)

    def settle(self) -> None:
        """Keep the last batch: its rows are deleted from the database."""
        if self._file is not None:
            self._settled = self._file.tell()
            self.entries += self._pending

    def close(self) -> str | None:
        """Close the file and return its digest; None if nothing was written."""
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
        # Sync the directory too, so that the file name survives a crash.
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return self._file

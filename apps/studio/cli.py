"""The studio's commands. They exit with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2 if they were called wrongly."""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from apps.common.program import ended, logged, migrated, program
from apps.common.telling import plain, remark, say

from . import books
from .accounts import lists, purse, users
from .dead import dead
from .desk import PROGRAM, Desk, Miscalled, opened, staffed
from .errors import BadSettings, Refusal, StudioError, Trouble
from .jobs import Studio
from .ordering import ordering
from .settings import Settings

TARGET = "apps.studio.app:app"
"""By which a worker's child imports the app: what may have killed a worker runs alone in one."""
HTTP = "127.0.0.1:8077"
SLOTS = 4
NOBODY = "00000000-0000-0000-0000-000000000000"
"""A job that there is not: whoever says so of its picture can be asked."""

HttpOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; only this machine reaches 127.0.0.1.")]
SlotsOption = Annotated[int, typer.Option(metavar="N", min=1, help="Pictures that are made at once.")]

commands = program("studio", "Pictures from prompts, paid with credits.", settings="the environment and from the file .env")


# ---------------------------------------------------------------- the database
@commands.command(short_help="Make or update the tables")
def migrate() -> None:
    """Bring the database to this code's version. Running it again changes nothing."""
    with opened() as (studio, _):
        say(plain(migrated("studio", studio)))
    remark(f"Next: add a user with `{PROGRAM} user add NAME --credits 20`.")


@commands.command(short_help="Check the books, and every rule of every job")
def check() -> None:
    """Check that everybody's credits balance and fit their jobs, and that every job kept every rule. It changes nothing.

    Exits with 1 if there is a fault.
    """
    with staffed() as desk:
        entries, faults = books.check(desk.studio)
        report = desk.studio.app.verify()
    told = [fault.sentence for fault in faults] + [f"Job {each.job_id} breaks the rule {each.rule}: {each.detail}" for each in report.violations]
    for line in told:
        say(plain(line))
    if report.left_out:
        say(f"And {report.left_out} more.")
    if told:
        remark("Nothing was changed. Stop the workers, keep a copy of the database, and find out what wrote to it besides the studio.")
        raise typer.Exit(1)
    say(f"All is well: {entries} {'entry' if entries == 1 else 'entries'} of the ledger and {report.checked} {'job' if report.checked == 1 else 'jobs'}.")


# ---------------------------------------------------------------- what runs for long
@commands.command(short_help="Run a worker and the page, until a signal")
def run(http: HttpOption = HTTP, slots: SlotsOption = SLOTS) -> None:
    """Run a worker, which makes the pictures, and serve the page and the interface over HTTP, until SIGTERM or SIGINT."""
    _run(http, slots)


@commands.command(short_help="Serve the page and the interface, until a signal")
def serve(http: HttpOption = HTTP) -> None:
    """Serve the page and the interface over HTTP without a worker, until SIGTERM or SIGINT."""
    _run(http, None)


@commands.command(short_help="Run a worker, until a signal")
def worker(slots: SlotsOption = SLOTS) -> None:
    """Run a worker, which makes the pictures, until SIGTERM or SIGINT. Any number may run."""
    _run(None, slots)


def _run(http: str | None, slots: int | None) -> None:
    from apps.common.serving import listening

    from .serving import until_signal

    with _logging(), opened() as (studio, settings):
        Desk(studio, settings)
        studio.app.target = TARGET
        who = "the local provider" if settings.provider == "local" else settings.api_url
        works = (f"making up to {slots} {'picture' if slots == 1 else 'pictures'} at once with {who}", f"the originals are in {settings.storage}")
        if slots is not None:
            _storage(studio, settings)
        address = None if http is None else listening(http, Miscalled, StudioError)
        until_signal(studio, lambda text: say(plain(text)), works=None if slots is None else works, slots=slots or SLOTS, http=address)


def _storage(studio: Studio, settings: Settings) -> None:
    """A directory that cannot be used ends it now; a bucket that is away may come back, and what is ordered waits for it."""
    originals = studio.means.originals
    try:
        asyncio.run(originals.ready())
        if settings.bucket is not None:
            asyncio.run(originals.find(NOBODY))
    except Trouble as trouble:
        if settings.bucket is None:
            raise StudioError(f"STUDIO_STORAGE names {settings.storage!r}, which cannot be used. {trouble}") from None
        remark(f"{trouble} The studio goes on without it: what is ordered is tried again, as after any trouble.")


@contextmanager
def _logging() -> Generator[None]:
    """The log goes to stderr, a line each."""
    # It would log links to images, and anyone with a link can see the image.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with logged():
        yield


# ---------------------------------------------------------------- the program
commands.add_typer(users, name="user", short_help="Add a user, or give one another key")
commands.add_typer(lists)
commands.add_typer(purse, name="credits", short_help="Give credits, and show the ledger")
commands.add_typer(ordering)
commands.add_typer(dead, name="dead", short_help="Review dead letters")


def _called_wrongly(error: Exception) -> bool:
    return isinstance(error, Miscalled | BadSettings) or (isinstance(error, Refusal) and error.code == "params_invalid")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what is to be said against it is one sentence, never a traceback."""
    raise SystemExit(ended(commands, arguments, StudioError, _called_wrongly))

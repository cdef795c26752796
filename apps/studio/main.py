"""The studio's commands. They exit with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2 if they were called wrongly."""

import logging
import os
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError

from apps.common.database import place, unasked
from apps.common.telling import plain, remark, say
from interlock import InterlockError

from . import books
from .accounts import lists, purse, users
from .dead import dead
from .desk import PROGRAM, Desk, Miscalled, opened, staffed
from .errors import BadSettings, Refusal, StudioError
from .ordering import ordering

TARGET = "apps.studio.app:app"
"""By which a worker's child imports the app: what may have killed a worker runs alone in one."""
HTTP = "127.0.0.1:8077"
SLOTS = 4

HttpOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; only this machine reaches 127.0.0.1.")]
SlotsOption = Annotated[int, typer.Option(metavar="N", min=1, help="Pictures that are made at once.")]

commands = typer.Typer(
    name="studio", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]}, help="Pictures from prompts, paid with credits.",
    epilog="Settings come from the environment and from the file .env: see the README. Every command exits with 0 if all is well, with 1 if the answer is no "
    "or something went wrong, and with 2 if it was called wrongly.",
)


# ---------------------------------------------------------------- the database
@commands.command(short_help="Make or update the tables")
def migrate() -> None:
    """Bring the database to this code's version. Running it again changes nothing."""
    # The file holds prompts, and the key that links are signed with, so it is for its user alone.
    before = os.umask(0o077)
    try:
        with opened() as (studio, _):
            # A server that is away is said to be so now; the engine would go on asking for a while.
            studio.engine.connect().close()
            studio.migrate()
            say(plain(f"The studio's tables are ready at {place(studio.engine)}."))
    finally:
        os.umask(before)
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
    from .serving import until_signal

    with _logging(), opened() as (studio, settings):
        Desk(studio, settings)
        studio.app.target = TARGET
        who = "the local provider" if settings.provider == "local" else settings.api_url
        works = (f"making up to {slots} {'picture' if slots == 1 else 'pictures'} at once with {who}", f"the originals are in {settings.storage}")
        listening = None if http is None else _listening(http)
        until_signal(studio, lambda text: say(plain(text)), works=None if slots is None else works, slots=slots or SLOTS, http=listening)


def _listening(address: str) -> socket.socket:
    from apps.common.serving import BadAddress, Taken, listening

    try:
        return listening(address)
    except BadAddress as error:
        raise Miscalled(str(error)) from None
    except Taken as error:
        raise StudioError(str(error)) from None


@contextmanager
def _logging() -> Generator[None]:
    """The log goes to stderr, a line each."""
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    # One would log the links to images, and whoever has one has the image; the other says what is said here already.
    for talkative in ("httpx", "uvicorn.error"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


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
    code: int | str | None = 0
    try:
        commands(args=None if arguments is None else list(arguments), prog_name=PROGRAM)
    except SystemExit as end:
        code = end.code
    except (StudioError, InterlockError) as error:
        remark(f"studio: {error}")
        code = 2 if _called_wrongly(error) else 1
    except DBAPIError as error:
        remark(f"studio: {unasked(error, 'studio')}")
        code = 1
    raise SystemExit(code)

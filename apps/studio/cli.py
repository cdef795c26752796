"""The command line: `python -m apps.studio`. Exit codes: 0 success, 1 failure or a negative answer, 2 wrong usage."""

import asyncio
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from apps.common.cli_base import log_to_stderr, make_cli, run_cli, run_migrations
from apps.common.formatting import plain_text, say, warn

from . import ledger_check
from .commands.dead_letter_commands import dead_letter_commands
from .commands.order_commands import order_commands
from .commands.user_commands import credit_commands, list_commands, user_commands
from .errors import BadSettings, Refusal, StudioError, TemporaryError
from .jobs import Studio
from .service import PROGRAM, CommandError, Service, open_service, open_studio
from .settings import Settings

TARGET = "apps.studio.app:app"
"""The import path for quarantine child processes: a job that may have killed a worker runs alone in one."""
HTTP = "127.0.0.1:8077"
SLOTS = 4
UNKNOWN_JOB = "00000000-0000-0000-0000-000000000000"
"""An ID that no job has. Looking it up shows whether the bucket is reachable."""

HttpOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address to listen on; 127.0.0.1 accepts only local connections.")
]
SlotsOption = Annotated[int, typer.Option(metavar="N", min=1, help="How many pictures to make at the same time.")]

commands = make_cli(
    "studio", "Create pictures from prompts, paid with credits.", settings="the environment and from the file .env"
)


# ---------------------------------------------------------------- the database
@commands.command(short_help="Create or update the tables")
def migrate() -> None:
    """Create or update the database tables. Running it again changes nothing."""
    with open_studio() as (studio, _):
        say(plain_text(run_migrations("studio", studio)))
    warn(f"Next: add a user with `{PROGRAM} user add NAME --credits 20`.")


@commands.command(short_help="Check the ledger and all jobs")
def check() -> None:
    """Check that all credits balance and match the jobs, and that no job broke a rule. It changes nothing.

    Exits with 1 if it finds a fault.
    """
    with open_service() as service:
        entries, faults = ledger_check.check(service.studio)
        report = service.studio.app.verify()
    lines = [fault.sentence for fault in faults] + [
        f"Job {each.job_id} breaks rule {each.rule}: {each.detail}" for each in report.violations
    ]
    for line in lines:
        say(plain_text(line))
    if report.left_out:
        say(f"{report.left_out} more faults are not shown.")
    if lines:
        warn("Nothing was changed. Stop the workers, copy the database, and find out which other program wrote to it.")
        raise typer.Exit(1)
    say(
        f"No faults found in {entries} ledger {'entry' if entries == 1 else 'entries'} "
        f"and {report.checked} {'job' if report.checked == 1 else 'jobs'}."
    )


# ---------------------------------------------------------------- long-running commands
@commands.command(short_help="Run a worker and the web server")
def run(http: HttpOption = HTTP, slots: SlotsOption = SLOTS) -> None:
    """Run a worker, which makes the pictures, and serve the page and the HTTP API, until SIGTERM or SIGINT."""
    _run(http, slots)


@commands.command(short_help="Run the web server without a worker")
def serve(http: HttpOption = HTTP) -> None:
    """Serve the page and the HTTP API without a worker, until SIGTERM or SIGINT."""
    _run(http, None)


@commands.command(short_help="Run a worker")
def worker(slots: SlotsOption = SLOTS) -> None:
    """Run a worker, which makes the pictures, until SIGTERM or SIGINT. Any number of workers may run."""
    _run(None, slots)


def _run(http: str | None, slots: int | None) -> None:
    from apps.common.serving import open_listener

    from .web.server import run_until_signal

    with _logging(), open_studio() as (studio, settings):
        Service(studio, settings)
        studio.app.target = TARGET
        who = "the local provider" if settings.provider == "local" else settings.api_url
        works = (
            f"making up to {slots} {'picture' if slots == 1 else 'pictures'} at a time with {who}",
            f"storing originals in {settings.storage}",
        )
        if slots is not None:
            _check_storage(studio, settings)
        address = None if http is None else open_listener(http, CommandError, StudioError)
        run_until_signal(
            studio,
            lambda text: say(plain_text(text)),
            works=None if slots is None else works,
            slots=slots or SLOTS,
            http=address,
        )


def _check_storage(studio: Studio, settings: Settings) -> None:
    """Fail if the directory is not usable; only warn about an unreachable bucket, because jobs retry it."""
    originals = studio.dependencies.originals
    try:
        asyncio.run(originals.check_writable())
        if settings.bucket is not None:
            asyncio.run(originals.find(UNKNOWN_JOB))
    except TemporaryError as trouble:
        if settings.bucket is None:
            raise StudioError(f"STUDIO_STORAGE: cannot use {settings.storage!r}. {trouble}") from None
        warn(f"{trouble} The studio starts anyway; orders are retried until the storage is reachable.")


@contextmanager
def _logging() -> Generator[None]:
    """Log to stderr, one line per record."""
    # httpx would log links to images, and anyone with a link can see the image.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with log_to_stderr():
        yield


# ---------------------------------------------------------------- all commands
commands.add_typer(user_commands, name="user", short_help="Add a user or replace a key")
commands.add_typer(list_commands)
commands.add_typer(credit_commands, name="credits", short_help="Grant credits and show the ledger")
commands.add_typer(order_commands)
commands.add_typer(dead_letter_commands, name="dead", short_help="Review dead letters")


def _is_usage_error(error: Exception) -> bool:
    return isinstance(error, CommandError | BadSettings) or (
        isinstance(error, Refusal) and error.code == "params_invalid"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Expected errors are printed as one sentence, without a traceback."""
    raise SystemExit(run_cli(commands, arguments, StudioError, _is_usage_error))

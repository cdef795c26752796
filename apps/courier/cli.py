"""The courier's command line. Exit codes: 0 for success, 1 for a negative answer or an error, 2 for wrong usage."""

import asyncio
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from apps.common import formatting
from apps.common.cli_base import log_to_stderr, make_cli, open_application, run_cli, run_migrations
from apps.common.database import missing_tables_message, table_exists

from .assembly import assemble
from .errors import BotTokenRejected, CourierError, SettingsError
from .jobs import Courier
from .redact import add_secrets, protect_logs, redact_text
from .service import Service
from .settings import Settings
from .status_message import format_status
from .tables import orders

TARGET = "apps.courier.app:app"
"""The import path of the app for worker child processes, which run suspect jobs alone."""
SLOTS = 8

commands = make_cli(
    "courier",
    "A Telegram bot that delivers files from Yandex Disk.",
    settings="the environment and the file .env",
)


class NotMigratedError(CourierError):
    """The database has no tables of the courier. Nothing was created."""


# ---------------------------------------------------------------- opening the courier
@contextmanager
def open_courier() -> Generator[tuple[Courier, Settings]]:
    """Build the courier from the settings. Nothing is opened yet."""
    settings = Settings.load()
    add_secrets(settings.secrets)
    with open_application("courier", lambda: assemble(settings), SettingsError) as courier:
        yield courier, settings


@contextmanager
def open_migrated_courier() -> Generator[tuple[Courier, Settings]]:
    """Build the courier on a migrated database. Checking creates no file."""
    with open_courier() as (courier, settings):
        if not table_exists(courier.engine, orders.name):
            raise NotMigratedError(missing_tables_message(courier.engine, "courier"))
        yield courier, settings


def print_line(text: str) -> None:
    """Print a text on one line, without control characters and secrets."""
    formatting.say(formatting.plain_text(redact_text(text)))


def warn(text: str) -> None:
    """Print a warning to stderr, without secrets."""
    formatting.warn(redact_text(text))


# ---------------------------------------------------------------- one-time commands
@commands.command(short_help="Create or update the tables")
def migrate() -> None:
    """Create or update the tables. Running it again changes nothing."""
    with open_courier() as (courier, _):
        print_line(run_migrations("courier", courier))


@commands.command(short_help="Check the access to Telegram and Yandex Disk")
def check() -> None:
    """Check that Telegram knows the bot and that Yandex Disk has the folder, and print the result or the fix."""
    from .startup_checks import check_external_systems

    with open_migrated_courier() as (courier, settings):
        checks = asyncio.run(check_external_systems(courier, settings))
    for ok, line in checks:
        (print_line if ok else warn)(line)
    raise typer.Exit(0 if all(ok for ok, _ in checks) else 1)


@commands.command(short_help="Show the state of deliveries")
def status() -> None:
    """Show the same status as the bot's /status command."""
    with open_migrated_courier() as (courier, settings):
        for line in format_status("en", Service(courier, settings).overview(), datetime.now(UTC)).splitlines():
            print_line(line)


# ---------------------------------------------------------------- long-running commands
@commands.command(short_help="Run the bot until a signal")
def bot() -> None:
    """Run the bot until SIGTERM or SIGINT. Telegram allows one bot per token."""
    from .runners import run_bot

    with _redacted_log(), open_migrated_courier() as (courier, settings):
        run_bot(courier, settings, print_line)


@commands.command(short_help="Run a worker until a signal")
def worker(
    slots: Annotated[int, typer.Option(metavar="N", min=1, help="Number of concurrent deliveries.")] = SLOTS,
) -> None:
    """Run a worker, which delivers files from Yandex Disk to Telegram, until SIGTERM or SIGINT. Any number may run."""
    from .runners import run_worker

    with _redacted_log(), open_migrated_courier() as (courier, _):
        courier.app.target = TARGET
        run_worker(courier, print_line, slots=slots)


@contextmanager
def _redacted_log() -> Generator[None]:
    """Write the log to stderr, one line per record, without secrets."""
    with log_to_stderr():
        protect_logs()
        yield


# ---------------------------------------------------------------- entry point
def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Errors are one sentence, and no traceback shows a secret."""
    try:
        code = run_cli(
            commands,
            arguments,
            CourierError,
            lambda error: isinstance(error, SettingsError | BotTokenRejected),
            warn=warn,
        )
    except Exception:  # noqa: BLE001 - its own traceback could print an address with a token
        sys.stderr.write(redact_text(traceback.format_exc()))
        code = 1
    raise SystemExit(code)

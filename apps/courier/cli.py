"""The courier's commands. They exit with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2 if they were called wrongly."""

import asyncio
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from apps.common import telling
from apps.common.database import no_tables, there
from apps.common.program import ended, logged, made, migrated, program

from .assembly import assembled
from .desk import Desk
from .errors import BadSettings, BotRefused, CourierError
from .jobs import Courier
from .redact import hide, quiet, scrub
from .settings import Settings
from .status_page import page
from .tables import orders

TARGET = "apps.courier.app:app"
"""By which a worker's child imports the app: what may have killed a worker runs alone in one."""
SLOTS = 8

commands = program("courier", "A library on Yandex Disk, whose files a Telegram bot delivers.", settings="the environment and from the file .env")


class NotReady(CourierError):
    """The database has no tables of the courier. Nothing was made there."""


# ---------------------------------------------------------------- what a command works on
@contextmanager
def opened() -> Generator[tuple[Courier, Settings]]:
    """The courier of the environment's settings. It opens nothing yet."""
    settings = Settings.read()
    hide(settings.secrets)
    with made("courier", lambda: assembled(settings), BadSettings) as courier:
        yield courier, settings


@contextmanager
def ready() -> Generator[tuple[Courier, Settings]]:
    """The same, on a database that was migrated. Looking makes no file."""
    with opened() as (courier, settings):
        if not there(courier.engine, orders.name):
            raise NotReady(no_tables(courier.engine, "courier"))
        yield courier, settings


def say(text: str) -> None:
    """On one line, without anything that a terminal would obey, and without any secret."""
    telling.say(telling.plain(scrub(text)))


def remark(text: str) -> None:
    """The same on the other channel, so that what is printed stays what was asked for."""
    telling.remark(scrub(text))


# ---------------------------------------------------------------- once
@commands.command(short_help="Make or update the tables")
def migrate() -> None:
    """Bring the database to this code's version. Running it again changes nothing."""
    with opened() as (courier, _):
        say(migrated("courier", courier))


@commands.command(short_help="Ask Telegram and Yandex Disk whether all is well")
def check() -> None:
    """Ask Telegram for the bot's name and Yandex Disk for the library's folder, once, and say what is there or what to mend."""
    from .serving import found

    with ready() as (courier, settings):
        answers = asyncio.run(found(courier, settings))
    for well, line in answers:
        (say if well else remark)(line)
    raise typer.Exit(0 if all(well for well, _ in answers) else 1)


@commands.command(short_help="Show how deliveries stand")
def status() -> None:
    """Show what administrators see when they send /status to the bot."""
    with ready() as (courier, settings):
        for line in page("en", Desk(courier, settings).overview(), datetime.now(UTC)).splitlines():
            say(line)


# ---------------------------------------------------------------- what runs for long
@commands.command(short_help="Run the bot, until a signal")
def bot() -> None:
    """Run the bot, which answers people and shows them how their files stand, until SIGTERM or SIGINT. One for each token: Telegram refuses a second."""
    from .serving import bot_until_signal

    with _logging(), ready() as (courier, settings):
        bot_until_signal(courier, settings, say)


@commands.command(short_help="Run a worker, until a signal")
def worker(slots: Annotated[int, typer.Option(metavar="N", min=1, help="Files that are delivered at once.")] = SLOTS) -> None:
    """Run a worker, which carries files from Yandex Disk to Telegram, until SIGTERM or SIGINT. Any number may run."""
    from .serving import worker_until_signal

    with _logging(), ready() as (courier, _):
        courier.app.target = TARGET
        worker_until_signal(courier, say, slots=slots)


@contextmanager
def _logging() -> Generator[None]:
    """The log goes to stderr, a line each, without a secret in it."""
    with logged():
        quiet()
        yield


# ---------------------------------------------------------------- the program
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what is to be said against it is one sentence, and no traceback ever shows a secret."""
    try:
        code = ended(commands, arguments, CourierError, lambda error: isinstance(error, BadSettings | BotRefused), remark=remark)
    except Exception:  # noqa: BLE001 - nobody expected it, and printed by itself it could show an address with a token
        sys.stderr.write(scrub(traceback.format_exc()))
        code = 1
    raise SystemExit(code)

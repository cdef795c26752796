"""The commands of the librarian."""

import logging
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from apps.common.cli_base import log_to_stderr, make_cli, open_application, run_cli, run_migrations
from apps.common.database import display_url
from apps.common.formatting import (
    format_table,
    format_time,
    plain_text,
    say,
    shorten_ids,
    terminal_width,
    to_json,
    warn,
)
from apps.common.job_ids import MIN_PREFIX

from .assembly import assemble
from .errors import (
    BadName,
    BadSettings,
    BadSource,
    Banned,
    CommandError,
    LibrarianError,
    LoginRefused,
    UnknownMedia,
    UnsafeCredentials,
)
from .follow import REFRESH_SECONDS, follow_download
from .formatting import describe_download, format_progress, format_status
from .jobs import RECONCILE_BATCH, Librarian
from .models import Progress
from .service import StaffService
from .settings import Settings
from .torrent_source import MAX_TORRENT

USAGE_ERRORS = (CommandError, BadSource, BadName, BadSettings, UnsafeCredentials, LoginRefused, UnknownMedia)
DEFAULT_ADDRESS = "127.0.0.1:8099"
NEW = "queued"
"""The printed status of a new download, even if a worker has already changed it."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help=f"The download's id, or its first {MIN_PREFIX} characters or more.")
]
HttpOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to listen; only this machine reaches 127.0.0.1.")
]

commands = make_cli("librarian", "A library of books whose downloads follow qBittorrent.", settings="the environment")
user_commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage users.")
book_commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage books.")
commands.add_typer(user_commands, name="user", short_help="Add a user")
commands.add_typer(book_commands, name="book", short_help="Add a book")


@contextmanager
def open_librarian() -> Generator[tuple[Librarian, Settings]]:
    """The librarian with the settings of the environment. It opens no connection."""
    settings = Settings.from_env()
    with open_application("librarian", lambda: assemble(settings), BadSettings) as librarian:
        yield librarian, settings


@contextmanager
def open_service() -> Generator[StaffService]:
    """The staff's service on a migrated database."""
    with open_librarian() as (librarian, _):
        service = StaffService(librarian)
        service.check_migrated()
        yield service


# ---------------------------------------------------------------- users and books
@commands.command(short_help="Create or update the tables")
def migrate() -> None:
    """Bring the database to this code's version. Running it again changes nothing."""
    with open_librarian() as (librarian, _):
        say(plain_text(run_migrations("librarian", librarian)))


@user_commands.command("add")
def add_user(name: Annotated[str, typer.Argument(help="The name of the user.")]) -> None:
    """Add a user, and print the token for the HTTP API.

    The token is shown only once. Only its hash is stored.
    """
    with open_service() as service:
        user = service.add_user(name)
    warn(f"{user.name} is user {user.id}. Keep this token secret. It will not be shown again:")
    say(str(user.token))


@commands.command("users", short_help="List the users")
def list_users(json: JsonOption = False) -> None:
    """List the users, without their tokens."""
    with open_service() as service:
        users = [{"id": user.id, "name": user.name} for user in service.users()]
    rows = [tuple(user.values()) for user in users]
    say(to_json(users, indent=2) if json else format_table(("id", "name"), rows, width=terminal_width(), cut=["name"]))


@book_commands.command("add")
def add_book(
    title: Annotated[str, typer.Argument(help="The title.")],
    author: Annotated[str, typer.Option(metavar="NAME", help="The author.")] = "",
) -> None:
    """Add a book without media."""
    with open_service() as service:
        book = service.add_book(title, author)
    say(plain_text(f"{book.title} is book {book.id}."))


@commands.command("books", short_help="List the books")
def list_books(json: JsonOption = False) -> None:
    """List the books. The state is Library if a medium is available, else Archive."""
    with open_service() as service:
        books = service.books()
    columns, rows = (
        ("id", "title", "author", "state"),
        [(each.id, each.title, each.author, each.state) for each in books],
    )
    table = format_table(columns, rows, width=terminal_width(), cut=["title", "author"])
    say(to_json(books, indent=2) if json else table)


# ---------------------------------------------------------------- downloads
@commands.command(short_help="Download the text or audio of a book")
def start(
    book: Annotated[str, typer.Argument(metavar="BOOK", help="The book's id.")],
    media_type: Annotated[str, typer.Argument(metavar="text|audio", help="The media type.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A magnet link, or the path of a .torrent file.")],
    user: Annotated[
        str | None, typer.Option(metavar="NAME-OR-ID", help="The user. Optional if there is only one.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Show the progress until the download ends.")] = False,
) -> None:
    """Download the text or audio of a book. If that download is active already, show it.

    With --follow, the exit codes are those of the command follow.
    """
    with open_service() as service:
        content = _read_source(source)
        started = service.start_download(service.find_user(user).id, _parse_book_id(book), media_type, content)
        status = NEW if started.created else describe_download(service.find_download(started.id))
        say(f"{started.id} is {status}" if started.created else f"{started.id} was active already: {status}")
        if follow:
            raise typer.Exit(_follow(service, started.id, last_line=status))


def _parse_book_id(given: str) -> int:
    if not given.isascii() or not given.isdecimal():
        raise CommandError(f"{given[:200]!r} is not a book id. `books` lists the ids.")
    # No id has 20 digits, and Python refuses to convert thousands of them.
    return int(given[:20])


def _read_source(given: str) -> str | bytes:
    if given[:7].lower() == "magnet:":
        return given
    try:
        with Path(given).open("rb") as file:
            return file.read(MAX_TORRENT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a valid path"
        raise CommandError(
            f"{given[:200]!r} is not a magnet link, and cannot be read as a .torrent file: {reason}."
        ) from None


@commands.command("list", short_help="List all downloads, newest first")
def list_downloads(json: JsonOption = False) -> None:
    """List the downloads of all users, newest first."""
    with open_service() as service:
        found = service.all_downloads()
        titles = {book.id: book.title for book in service.books()}
        names = {user.id: user.name for user in service.users()}
    width = terminal_width()
    ids = [each.id for each in found] if width is None else shorten_ids([each.id for each in found], MIN_PREFIX)
    rows = [
        (
            id,
            format_status(each),
            names[each.user_id],
            titles[each.book_id],
            each.media_type,
            format_progress(each.progress),
        )
        for id, each in zip(ids, found, strict=True)
    ]
    columns = ("id", "status", "user", "book", "medium", "progress")
    say(to_json(found, indent=2) if json else format_table(columns, rows, width=width, cut=["book", "user"]))


@commands.command(short_help="Show all fields of a download")
def show(id: IdArgument, json: JsonOption = False) -> None:
    """Show all fields of a download, with the column names of the view download_jobs, and its storage path."""
    with open_service() as service:
        download = service.find_download(id)
        values = {field.name: getattr(download, field.name) for field in fields(download)}
        values["storage_path"] = service.storage_path(download)
    lines = [f"{name:<24}{_format_value(value)}" for name, value in values.items() if value is not None]
    say(to_json(values, indent=2) if json else "\n".join(lines))


def _format_value(value: object) -> str:
    if isinstance(value, Progress):
        return plain_text(f"{format_progress(value)}; qBittorrent: {value.note}")
    return format_time(value) if isinstance(value, datetime) else plain_text(value)


@commands.command(short_help="Cancel a download")
def cancel(id: IdArgument) -> None:
    """Cancel an active download. A waiting download ends at once; a worker ends one that qBittorrent has.

    The torrent and its files are deleted afterwards, unless another download or asset needs them.
    """
    with open_service() as service:
        found = service.find_download(id)
        download = service.cancel(found.user_id, found.id)
        if download.active and (warning := service.missing_worker_warning()) is not None:
            warn(warning)
    say(
        f"{download.id} is being canceled: a worker ends it within a second or so."
        if download.active
        else f"{download.id} is {download.status}."
    )


@commands.command(short_help="Show the progress of a download until it ends")
def follow(id: IdArgument) -> None:
    """Show the progress of a download until it ends: a bar in a terminal, else a line for each change.

    Exits with 0 if the download completed, and with 1 if it failed or was canceled. Ctrl-C exits with 130; the download
    continues.
    """
    with open_service() as service:
        raise typer.Exit(_follow(service, id))


def _wait() -> None:
    time.sleep(REFRESH_SECONDS)


def _follow(service: StaffService, id: str, wait: Callable[[], None] = _wait, *, last_line: str = "") -> int:
    if service.find_download(id).active and (warning := service.stalled_warning()) is not None:
        warn(warning)
    try:
        download = follow_download(service, id, sys.stdout, wait, terminal=sys.stdout.isatty(), last_line=last_line)
    except KeyboardInterrupt:
        warn(f"The download continues. Show it again with `follow {id}`, or end it with `cancel {id}`.")
        return 130
    return 0 if download.status == "completed" else 1


# ---------------------------------------------------------------- long-running commands
@commands.command(short_help="Run a worker until a signal")
def run(
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help=f"Also serve the HTTP API, for example at {DEFAULT_ADDRESS}."),
    ] = None,
) -> None:
    """Run a worker until SIGTERM or SIGINT. It hands torrents to qBittorrent and follows them."""
    _run(http, work=True)


@commands.command(short_help="Serve the HTTP API until a signal")
def serve(http: HttpOption = DEFAULT_ADDRESS) -> None:
    """Serve the HTTP API without a worker until SIGTERM or SIGINT."""
    _run(http, work=False)


def _run(http: str | None, *, work: bool) -> None:
    from apps.common.serving import open_listener

    from .server import run_until_signal

    # urllib3 logs every retry; the librarian logs once that qBittorrent is unreachable.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    with log_to_stderr(logging.WARNING), open_librarian() as (librarian, settings):
        StaffService(librarian).check_migrated()
        lines = (
            (
                f"following qBittorrent at {settings.qbittorrent_url}: "
                f"up to {RECONCILE_BATCH} downloads per request, every {settings.poll:g} s"
            ),
            f"the library is at {display_url(librarian.engine)}, its downloads in {settings.downloads}",
        )
        listener = None if http is None else open_listener(http, CommandError, LibrarianError)
        run_until_signal(
            librarian, lambda text: say(plain_text(text)), worker_lines=lines if work else None, http=listener
        )


def _format_error(error: Exception) -> str:
    """The message, and for wrong credentials the variables to set."""
    if isinstance(error, UnsafeCredentials | LoginRefused) and not isinstance(error, Banned):
        return f"{error} Set LIBRARIAN_QBITTORRENT_USERNAME and LIBRARIAN_QBITTORRENT_PASSWORD."
    return str(error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error is one sentence on stderr, never a traceback."""
    code = run_cli(
        commands,
        arguments,
        LibrarianError,
        lambda error: isinstance(error, USAGE_ERRORS),
        format_error=_format_error,
    )
    raise SystemExit(code)

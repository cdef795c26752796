"""The librarian's commands. They exit with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2 if they were called wrongly."""

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

from apps.common.database import place
from apps.common.ids import SHORTEST
from apps.common.program import ended, logged, made, migrated, program
from apps.common.telling import as_json, moment, plain, remark, say, shortened, table, width

from .assembly import assembled
from .desk import Desk, Miscalled
from .errors import BadName, BadSettings, BadSource, Banned, CredentialsRefused, LibrarianError, LoginRefused, UnknownMedia
from .following import EVERY, followed
from .jobs import BATCH, Librarian
from .library import Progress
from .settings import Settings
from .source import LARGEST_TORRENT
from .telling import how_far, how_it_stands, status

CALLED_WRONGLY = (Miscalled, BadSource, BadName, BadSettings, CredentialsRefused, LoginRefused, UnknownMedia)
HTTP = "127.0.0.1:8099"
NEW = "queued"
"""So a download begins, however quick a worker may have been since."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help=f"The download's id, or its first {SHORTEST} characters or more.")]
HttpOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; only this machine reaches 127.0.0.1.")]

commands = program("librarian", "A library of books whose downloads follow qBittorrent.", settings="the environment")
people = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The library's users.")
shelves = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The library's books.")
commands.add_typer(people, name="user", short_help="Add a user")
commands.add_typer(shelves, name="book", short_help="Add a book")


# ---------------------------------------------------------------- what a command works on
@contextmanager
def opened() -> Generator[tuple[Librarian, Settings]]:
    """The librarian of the environment's settings. It opens nothing yet."""
    settings = Settings.from_env()
    with made("librarian", lambda: assembled(settings), BadSettings) as librarian:
        yield librarian, settings


@contextmanager
def staffed() -> Generator[Desk]:
    """The library on its database, which must be there already."""
    with opened() as (librarian, _):
        desk = Desk(librarian)
        desk.check()
        yield desk


# ---------------------------------------------------------------- the library
@commands.command(short_help="Make or update the tables")
def migrate() -> None:
    """Bring the database to this code's version. Running it again changes nothing."""
    with opened() as (librarian, _):
        say(plain(migrated("librarian", librarian)))


@people.command("add")
def add_user(name: Annotated[str, typer.Argument(help="What they are called.")]) -> None:
    """Add a user, and print the token by which they are known over HTTP.

    The token is shown this once. Only its hash is stored.
    """
    with staffed() as desk:
        user = desk.add_user(name)
    remark(f"{user.name} is user {user.id}. Whoever has this token is taken for them, and it is shown only now:")
    say(str(user.token))


@commands.command("users", short_help="List the users")
def list_users(json: JsonOption = False) -> None:
    """List the users. Nobody's token is shown: only its hash is stored."""
    with staffed() as desk:
        everybody = [{"id": user.id, "name": user.name} for user in desk.users()]
    say(as_json(everybody, indent=2) if json else table(("id", "name"), [tuple(user.values()) for user in everybody], width=width(), cut=["name"]))


@shelves.command("add")
def add_book(
    title: Annotated[str, typer.Argument(help="Its title.")], author: Annotated[str, typer.Option(metavar="NAME", help="Who wrote it.")] = "",
) -> None:
    """Add a book, of which nothing is here yet."""
    with staffed() as desk:
        book = desk.add_book(title, author)
    say(plain(f"{book.title} is book {book.id}."))


@commands.command("books", short_help="List the books")
def list_books(json: JsonOption = False) -> None:
    """List the books. One is in the state Library if a medium of it is here, else in Archive."""
    with staffed() as desk:
        books = desk.books()
    rows = [(book.id, book.title, book.author, book.state) for book in books]
    say(as_json(books, indent=2) if json else table(("id", "title", "author", "state"), rows, width=width(), cut=["title", "author"]))


# ---------------------------------------------------------------- downloads
@commands.command(short_help="Download a medium of a book")
def start(
    book: Annotated[str, typer.Argument(metavar="BOOK", help="The book's id.")],
    media_type: Annotated[str, typer.Argument(metavar="text|audio", help="Which of its media.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A magnet link, or the path of a .torrent.")],
    user: Annotated[str | None, typer.Option(metavar="NAME-OR-ID", help="For whom; not needed while there is one user only.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Stay, and show how far it is, until it has ended.")] = False,
) -> None:
    """Download a medium of a book, or find the download of it that is active already.

    With --follow it exits as the command follow does.
    """
    with staffed() as desk:
        given = _source(source)
        started = desk.start_download(desk.user(user).id, _book(book), media_type, given)
        stands = NEW if started.created else how_it_stands(desk.found(started.id))
        say(f"{started.id} is {stands}" if started.created else f"{started.id} was active already: {stands}")
        if follow:
            raise typer.Exit(_follow(desk, started.id, said=stands))


def _book(given: str) -> int:
    if not given.isascii() or not given.isdecimal():
        raise Miscalled(f"{given[:200]!r} is no book's id: `books` lists the ids.")
    # No book has so long an id, and of far longer ones Python makes no number.
    return int(given[:20])


def _source(given: str) -> str | bytes:
    if given[:7].lower() == "magnet:":
        return given
    try:
        with Path(given).open("rb") as file:
            return file.read(LARGEST_TORRENT + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "that is no path"
        raise Miscalled(f"{given[:200]!r} is no magnet link, and cannot be read as a file ({why}): give either.") from None


@commands.command("list", short_help="List all downloads, newest first")
def list_downloads(json: JsonOption = False) -> None:
    """List everybody's downloads, newest first."""
    with staffed() as desk:
        found = desk.every_download()
        titles, names = {book.id: book.title for book in desk.books()}, {user.id: user.name for user in desk.users()}
    wide = width()
    ids = [each.id for each in found] if wide is None else shortened([each.id for each in found], SHORTEST)
    rows = [(id, status(each), names[each.user_id], titles[each.book_id], each.media_type, how_far(each.progress)) for id, each in zip(ids, found, strict=True)]
    columns = ("id", "status", "user", "book", "medium", "how far")
    say(as_json(found, indent=2) if json else table(columns, rows, width=wide, cut=["book", "user"]))


@commands.command(short_help="Show all that is known of a download")
def show(id: IdArgument, json: JsonOption = False) -> None:
    """Show all that is known of a download, under the names of the view download_jobs, and where it was put."""
    with staffed() as desk:
        seen = desk.found(id)
        known = {field.name: getattr(seen, field.name) for field in fields(seen)} | {"storage_path": desk.stored_at(seen)}
    say(as_json(known, indent=2) if json else "\n".join(f"{name:<24}{_told(value)}" for name, value in known.items() if value is not None))


def _told(value: object) -> str:
    if isinstance(value, Progress):
        return plain(f"{how_far(value)}; qBittorrent says {value.note}")
    return moment(value) if isinstance(value, datetime) else plain(value)


@commands.command(short_help="Cancel a download")
def cancel(id: IdArgument) -> None:
    """Cancel a download that is active: at once if it waits; if it is handed over, a worker ends it.

    Its torrent and its files go afterwards, unless somebody else needs them.
    """
    with staffed() as desk:
        seen = desk.found(id)
        ended = desk.cancel(seen.user_id, seen.id)
        if ended.active and (unstaffed := desk.unstaffed()) is not None:
            remark(unstaffed)
    say(f"{ended.id} is being canceled: a worker ends it within a second or so." if ended.active else f"{ended.id} is {ended.status}.")


@commands.command(short_help="Show how far a download is, until it ends")
def follow(id: IdArgument) -> None:
    """Show how far a download is, until it has ended: as a bar in a terminal, else as a line for each change.

    Exits with 0 if it completed, and with 1 if it failed or was canceled. Ctrl-C ends the looking, with 130, and not the download.
    """
    with staffed() as desk:
        raise typer.Exit(_follow(desk, id))


def _wait() -> None:
    time.sleep(EVERY)


def _follow(desk: Desk, id: str, wait: Callable[[], None] = _wait, *, said: str = "") -> int:
    if desk.found(id).active and (warning := desk.warning()) is not None:
        remark(warning)
    try:
        ended = followed(desk, id, sys.stdout, wait, terminal=sys.stdout.isatty(), said=said)
    except KeyboardInterrupt:
        remark(f"The download goes on: look again with `follow {id}`, or end it with `cancel {id}`.")
        return 130
    return 0 if ended.status == "completed" else 1


# ---------------------------------------------------------------- what runs for long
@commands.command(short_help="Run the worker, until a signal")
def run(http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=f"Serve the interface too, as in {HTTP}.")] = None) -> None:
    """Run the worker, which hands torrents over to qBittorrent and follows them there, until SIGTERM or SIGINT."""
    _run(http, works=True)


@commands.command(short_help="Serve the interface over HTTP, until a signal")
def serve(http: HttpOption = HTTP) -> None:
    """Serve the interface over HTTP without a worker, until SIGTERM or SIGINT."""
    _run(http, works=False)


def _run(http: str | None, *, works: bool) -> None:
    from apps.common.serving import listening

    from .serving import until_signal

    # It logs every retry; the librarian logs once that qBittorrent is unreachable.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    with logged(logging.WARNING), opened() as (librarian, settings):
        Desk(librarian).check()
        follows = (
            f"following qBittorrent at {settings.qbittorrent_url}, every {settings.poll:g} s up to {BATCH} downloads at once",
            f"the library is at {place(librarian.engine)}, its downloads in {settings.downloads}")
        address = None if http is None else listening(http, Miscalled, LibrarianError)
        until_signal(librarian, lambda text: say(plain(text)), follows=follows if works else None, http=address)


# ---------------------------------------------------------------- the program
def _sentence(error: Exception) -> str:
    """Its sentence, and if the credentials are to be mended, where they stand."""
    about_them = isinstance(error, CredentialsRefused | LoginRefused) and not isinstance(error, Banned)
    return f"{error} They stand in LIBRARIAN_QBITTORRENT_USERNAME and LIBRARIAN_QBITTORRENT_PASSWORD." if about_them else str(error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what is to be said against it is one sentence, never a traceback."""
    raise SystemExit(ended(commands, arguments, LibrarianError, lambda error: isinstance(error, CALLED_WRONGLY), told=_sentence))

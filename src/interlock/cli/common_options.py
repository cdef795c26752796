"""Options that many commands share, and the app and database that they name."""

import getpass
import os
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..app import App
from ..core.lifecycle import Lifecycle, builtin
from ..errors import InterlockError, NotMigrated, Unavailable
from ..store import POSTGRES, SQLITE, OpenStore, open_store
from ..store.database import VARIABLES
from ..worker.app_loader import AppLoadError, find, import_module, not_an_app
from . import output

AppOption = Annotated[
    str | None,
    typer.Option("-A", "--app", envvar="INTERLOCK_APP", metavar="MODULE:APP", help="Your app, as in shop:app."),
]
ELSE = "or else the URL of the app, INTERLOCK_DATABASE_URL, DATABASE_URL, or sqlite:///interlock.db"
DatabaseOption = Annotated[
    str | None, typer.Option("--database", metavar="URL", allow_from_autoenv=False, help=f"The database; {ELSE}.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ByOption = Annotated[str | None, typer.Option(metavar="NAME", help="Who does this; by default your login name.")]
OperationReasonOption = Annotated[str, typer.Option("--reason", help="The reason, which interlock operations shows.")]

CONNECT = 5
"""Seconds to wait for a server that does not answer."""
FRAMES = 6
"""How many frames of the app's own code are printed for an import error."""
_PACKAGE = Path(__file__).parents[1]


class CommandError(InterlockError):
    """The command was used incorrectly: exit code 2."""


# ---------------------------------------------------------------- the app
def load(name: str) -> App[Any]:
    """Import the app `module:app` and its `imports`. Sets `app.target`, so that child processes can import it."""
    try:
        found = find(name)
        if not isinstance(found, App):
            raise not_an_app(name, found)
        app: App[Any] = found  # pyright: ignore[reportUnknownVariableType] - an App of any transaction type
        for extra in app.imports:
            import_module(extra)
    except AppLoadError as error:
        _print_user_frames(error.__context__)
        raise CommandError(str(error)) from None
    except SystemExit as end:
        raise CommandError(
            f"-A {name} cannot be imported: the module exits (code {end.code}) when it is imported."
        ) from None
    app.target = name
    return app


def _print_user_frames(error: BaseException | None) -> None:
    """Print the last frames of the app's own code, if the error is not in the module itself."""
    every = traceback.extract_tb(None if error is None else error.__traceback__)
    path = [
        frame
        for frame in every
        if "importlib" not in frame.filename and Path(frame.filename) != _PACKAGE / "worker" / "app_loader.py"
    ]
    if len(path) > 1:
        theirs = [frame for frame in path if _PACKAGE not in Path(frame.filename).parents]
        output.print_note("".join(traceback.format_list(theirs[-FRAMES:])), lines=True)


def require_app(name: str | None) -> App[Any]:
    """Load the app; `CommandError` if no app is named."""
    if name is None:
        raise CommandError("This command needs your app: give -A MODULE:APP, or set INTERLOCK_APP.")
    return load(name)


@contextmanager
def open_app(name: str | None, database: str | None, *, app: App[Any] | None = None) -> Generator[App[Any]]:
    """Yield the app on its existing database. Without a name, the app has no kinds."""
    chosen = app or (load(name) if name else App(database))
    with ExitStack() as stack:
        if database:
            stack.enter_context(chosen.bound_to(database))
        stack.enter_context(name_database_errors(chosen.database.url))
        _check(chosen, name, database)
        stack.callback(chosen.close)
        yield chosen


# ---------------------------------------------------------------- the database
def open_unmigrated(app: App[Any]) -> OpenStore:
    """Open the app's store without migrating it."""
    # `app.database.store()` would migrate a new SQLite file.
    schema = app.database._schema  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return open_store(app.database.url, schema, app.database.clock)


def _check(app: App[Any], name: str | None, database: str | None) -> None:
    """Raise `NotMigrated` if the database has no tables. Never creates one, and does not wait long."""
    url = app.database.url
    check_reachable(url)
    store = open_unmigrated(app)
    try:
        if store.registry.is_empty():
            named = name or database or any(os.environ.get(each) for each in VARIABLES)
            unnamed = "" if named else " (no database was named)"
            raise NotMigrated(
                f"There are no jobs at {hide_password(url)}{unnamed}: {_lacking(url, store)}. {_remedy(name, database)}"
            )
    finally:
        store.close()


def _lacking(url: str, store: OpenStore) -> str:
    scheme, _, rest = url.partition("://")
    place = Path(rest.removeprefix("/"))
    if scheme not in SQLITE:
        return "Interlock has no tables in it"
    if not place.parent.is_dir():
        return f"the directory {place.parent} does not exist"
    if not place.exists():
        return "there is no such file"
    return "the file is empty" if store.registry.is_new() else "the file has other tables, but none of Interlock"


def _remedy(name: str | None, database: str | None) -> str:
    same = "" if database is None else f" --database {hide_password(database)}"
    return (
        f"Name another with --database or -A, or create the tables: interlock migrate -A {name or 'MODULE:APP'}{same}"
    )


def hide_password(url: str) -> str:
    """Return the URL without its password."""
    scheme, separator, rest = url.partition("://")
    return url if scheme in SQLITE else f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}"


def check_reachable(url: str) -> None:
    """Raise at once if the server is unreachable. The pool would retry for half a minute."""
    if url.partition("://")[0] not in POSTGRES:
        return
    try:
        import psycopg
    except ModuleNotFoundError:
        return
    psycopg.connect(f"postgresql://{url.partition('://')[2]}", connect_timeout=CONNECT).close()


def lifecycles(app: App[Any]) -> list[Lifecycle]:
    """Return `standard` and the lifecycles of the app's kinds, each once."""
    every = [builtin("standard"), *(kind.spec.lifecycle for kind in app.kinds.values())]
    return list({each.name: each for each in every}.values())


@contextmanager
def name_database_errors(url: str) -> Generator[None]:
    """Turn a database driver's error into a sentence that names the database."""
    try:
        yield
    except Exception as error:
        # The store's own sentence is written for a worker, which retries.
        cause = error.__cause__ if isinstance(error, Unavailable) and error.__cause__ is not None else error
        if (sentence := _unreachable(cause, url)) is None:
            raise
        raise InterlockError(sentence) from error


def _unreachable(error: BaseException, url: str) -> str | None:
    library = type(error).__module__.partition(".")[0]
    said = _first_line(error)
    if library in ("psycopg", "psycopg_pool"):
        silent = any(word in said for word in ("refused", "No such file", "resolve", "timeout"))
        return f"PostgreSQL says: {said}.{' Is the server running? Check --database.' if silent else ''}"
    if library in ("sqlite3", "pysqlite3"):
        other = "not a database" in said
        hint = " It is damaged or not a database: name another with --database." if other else ""
        return f"SQLite says of {url}: {said}.{hint}"
    return None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def login_name() -> str:
    """Return the login name of the caller."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        raise CommandError(
            "Your login name is not known: give --by NAME, which is stored in the job's history."
        ) from None

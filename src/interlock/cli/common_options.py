"""What a command works on: your app, its database, or both."""

import getpass
import os
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..app import App
from ..database import VARIABLES
from ..errors import InterlockError, NotMigrated, Unavailable
from ..lifecycle import Lifecycle, builtin
from ..records import KindFacts
from ..stores import POSTGRES, SQLITE, OpenStore, open_store
from ..target import Unloadable, find, imported, not_an_app
from . import screen

AppOption = Annotated[str | None, typer.Option("-A", "--app", envvar="INTERLOCK_APP", metavar="MODULE:APP", help="Your app, as in shop:app.")]
ELSE = "else the app's own URL, else INTERLOCK_DATABASE_URL, DATABASE_URL, else sqlite:///interlock.db"
DatabaseOption = Annotated[str | None, typer.Option("--database", metavar="URL", help=f"The database; {ELSE}.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ByOption = Annotated[str | None, typer.Option(metavar="NAME", help="Who asks; by default your login name.")]

CONNECT = 5
"""Seconds to wait for a server that does not answer."""
FRAMES = 6
"""How much of the way to an error in the app's own code is shown."""
_PACKAGE = Path(__file__).parents[1]


class Miscalled(InterlockError):
    """The command was called wrongly: exit code 2."""


# ---------------------------------------------------------------- the app
def load(name: str) -> App[Any]:
    """The app that `module:app` names, with everything that it wants imported. It knows its name from here on, so that children can import it."""
    try:
        found = find(name)
        if not isinstance(found, App):
            raise not_an_app(name, found)
        app: App[Any] = found  # pyright: ignore[reportUnknownVariableType] - an App of whatever transaction
        for extra in app.imports:
            imported(extra)
    except Unloadable as error:
        _show_way(error.__context__)
        raise Miscalled(str(error)) from None
    except SystemExit as end:
        raise Miscalled(f"-A {name} cannot be imported: the module ends the program (exit code {end.code}). Keep what does that out of its import.") from None
    app.target = name
    return app


def _show_way(error: BaseException | None) -> None:
    """Where an error arose further inside than the sentence about it can say: the last lines of the app's own code on the way there."""
    every = traceback.extract_tb(None if error is None else error.__traceback__)
    path = [frame for frame in every if "importlib" not in frame.filename and Path(frame.filename) != _PACKAGE / "target.py"]
    if len(path) > 1:
        theirs = [frame for frame in path if _PACKAGE not in Path(frame.filename).parents]
        screen.remark("".join(traceback.format_list(theirs[-FRAMES:])), lines=True)


def needed(name: str | None) -> App[Any]:
    """The app, where nothing can be done without it."""
    if name is None:
        raise Miscalled("This command needs your app: give -A MODULE:APP, or set INTERLOCK_APP.")
    return load(name)


@contextmanager
def opened(name: str | None, database: str | None, *, app: App[Any] | None = None) -> Generator[App[Any]]:
    """The app on its database, which must be there already; without a name, an app that knows no kinds."""
    chosen = app or (load(name) if name else App(database))
    with ExitStack() as stack:
        if database:
            stack.enter_context(chosen.bound_to(database))
        stack.enter_context(answering(chosen.database.url))
        _check(chosen, name, database)
        stack.callback(chosen.close)
        yield chosen


# ---------------------------------------------------------------- the database
def as_it_is(app: App[Any]) -> OpenStore:
    """The app's store, before a new SQLite file is migrated by itself."""
    # The app's own way to its store would migrate it first.
    schema = app.database._schema  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return open_store(app.database.url, schema, app.database.clock)


def _check(app: App[Any], name: str | None, database: str | None) -> None:
    """Looking must not make a database, nor wait long for one."""
    url = app.database.url
    knock(url)
    store = as_it_is(app)
    try:
        if store.is_empty():
            named = name or database or any(os.environ.get(each) for each in VARIABLES)
            unnamed = "" if named else " (no database was named)"
            raise NotMigrated(f"There are no jobs at {shown(url)}{unnamed}: {_lacking(url, store)}. {_remedy(name, database)}")
    finally:
        store.close()


def _lacking(url: str, store: OpenStore) -> str:
    scheme, _, rest = url.partition("://")
    place = Path(rest.removeprefix("/"))
    if scheme not in SQLITE:
        return "Interlock has no tables in it"
    if not place.parent.is_dir():
        return f"there is no directory {place.parent}, which must be made first"
    if not place.exists():
        return "there is no such file"
    return "the file is empty" if store.is_new() else "the file has tables of others, and none of Interlock"


def _remedy(name: str | None, database: str | None) -> str:
    same = "" if database is None else f" --database {shown(database)}"
    return f"Name another with --database or -A, or make the tables: interlock migrate -A {name or 'MODULE:APP'}{same}"


def shown(url: str) -> str:
    """The URL, without what may be a password."""
    scheme, separator, rest = url.partition("://")
    return url if scheme in SQLITE else f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}"


def knock(url: str) -> None:
    """Is the server there? The pool itself would go on asking for half a minute."""
    if url.partition("://")[0] not in POSTGRES:
        return
    try:
        import psycopg
    except ModuleNotFoundError:
        return
    psycopg.connect(f"postgresql://{url.partition('://')[2]}", connect_timeout=CONNECT).close()


def lifecycles(app: App[Any]) -> list[Lifecycle]:
    """`standard` and what the app's kinds follow, each once."""
    every = [builtin("standard"), *(kind.declaration.lifecycle for kind in app.kinds.values())]
    return list({each.name: each for each in every}.values())


def facts(app: App[Any]) -> list[KindFacts]:
    return [kind.facts() for kind in app.kinds.values()]


@contextmanager
def answering(url: str) -> Generator[None]:
    """What a database driver raises becomes a sentence that names the database."""
    try:
        yield
    except Exception as error:
        # The store says it more generally, and for a worker that will ask again.
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
        return f"SQLite says of {url}: {said}.{' It is a file of another kind, or damaged: name another with --database.' if other else ''}"
    return None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def me() -> str:
    """The login name of whoever calls."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        raise Miscalled("Nothing here says who you are: give --by NAME, which the job's history keeps.") from None

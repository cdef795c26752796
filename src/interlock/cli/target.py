"""What a command works on: your app, its database, or both."""

import importlib
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from ..app import App
from ..errors import InterlockError, NotMigrated
from ..lifecycle import Lifecycle, builtin
from ..store import KindFacts
from ..stores import POSTGRES, SQLITE, OpenStore, open_store

AppOption = Annotated[str | None, typer.Option("-A", "--app", envvar="INTERLOCK_APP", metavar="MODULE:APP", help="Your app, as in shop:app.")]
DatabaseOption = Annotated[str | None, typer.Option(
    "--database", metavar="URL", help="The database; by default the app's own, else INTERLOCK_DATABASE_URL, DATABASE_URL or sqlite:///interlock.db.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

CONNECT = 5
"""Seconds to wait for a server that does not answer."""


class Miscalled(InterlockError):
    """The command was called wrongly: exit code 2."""


# ---------------------------------------------------------------- the app
def load(name: str) -> App[Any]:
    """The app that `module:app` names, with everything that it wants imported."""
    module, separator, attribute = name.partition(":")
    if not (module and separator and attribute):
        raise Miscalled(f"-A {name!r} names no app: write it as MODULE:APP, such as shop:app for the `app` in shop.py.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: object = _imported(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Miscalled(f"-A {name}: {module} has no {attribute}: name the variable that holds your App.")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise Miscalled(f"-A {name} is a {type(found).__name__}, not an interlock.App: name the variable that holds your App.")
    app: App[Any] = found  # pyright: ignore[reportUnknownVariableType] - an App of whatever transaction
    for extra in app.imports:
        _imported(extra)
    return app


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise Miscalled(f"There is no module {module} here: run the command where it can be imported from, or correct -A.") from None
        raise Miscalled(f"{module} cannot be imported: it needs {error.name}, which is not installed.") from None
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise Miscalled(f"{module} cannot be imported: {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno}).") from None


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
        _check(chosen)
        stack.callback(chosen.close)
        yield chosen


# ---------------------------------------------------------------- the database
def as_it_is(app: App[Any]) -> OpenStore:
    """The app's store, before a new SQLite file is migrated by itself."""
    # The app's own way to its store would migrate it first.
    schema = app.database._schema  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return open_store(app.database.url, schema, app.database.clock)


def _check(app: App[Any]) -> None:
    """Looking must not make a database, nor wait long for one."""
    url = app.database.url
    knock(url)
    if url.partition("://")[0] not in SQLITE:
        return
    store = as_it_is(app)
    try:
        if store.is_empty():
            file = url.partition("://")[2].removeprefix("/")
            raise NotMigrated(f"There are no jobs at {file}: give --database, or make the tables there with interlock migrate -A module:app.")
    finally:
        store.close()


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


def unreachable(error: BaseException) -> str | None:
    """What a database driver raised, as a sentence; None for what is no driver's."""
    library = type(error).__module__.partition(".")[0]
    if library in ("psycopg", "psycopg_pool"):
        return f"PostgreSQL says: {_first_line(error)}."
    if library in ("sqlite3", "pysqlite3"):
        return f"SQLite says: {_first_line(error)}."
    return None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def me() -> str:
    """The login name of whoever calls."""
    name = next((value for key in ("LOGNAME", "USER", "USERNAME") if (value := os.environ.get(key))), None)
    if name is None:
        raise Miscalled("Nothing here says who you are: give --by NAME, which the job's history keeps.")
    return name

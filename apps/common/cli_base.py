"""The command line of an application: errors are one sentence on stderr, and exit codes say what happened."""

import logging
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

import typer
from sqlalchemy.exc import DBAPIError

from interlock import InterlockError

from .application import Application
from .database import create_sqlite_file, database_error_message, display_url, translate_database_errors
from .formatting import warn
from .log_dedup import RepeatedLineFilter

A = TypeVar("A", bound=Application)


def make_cli(name: str, help: str, *, settings: str) -> typer.Typer:
    """An empty Typer app of this name. `settings` names the place that the settings come from."""
    return typer.Typer(
        name=name,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=help,
        epilog=f"Settings come from {settings}; see the README. Every command exits with 0 on success, with 1 if the "
        "answer is no or the command failed, and with 2 if the arguments or settings are wrong.",
    )


def run_cli(
    commands: typer.Typer,
    arguments: Sequence[str] | None,
    own: type[Exception],
    is_usage_error: Callable[[Exception], bool],
    *,
    warn: Callable[[str], None] = warn,
    format_error: Callable[[Exception], str] = str,
) -> int | str | None:
    """Run a command and return its exit code.

    The application's `own` errors, and those of Interlock and of the database, become one sentence on stderr.
    """
    app = str(commands.info.name)
    try:
        commands(args=None if arguments is None else list(arguments), prog_name=f"python -m apps.{app}")
    except SystemExit as end:
        return end.code
    except (own, InterlockError) as error:
        warn(f"{app}: {format_error(error)}")
        return 2 if is_usage_error(error) else 1
    except DBAPIError as error:
        warn(f"{app}: {database_error_message(error, app)}")
        return 1
    return 0


# ---------------------------------------------------------------- parts of a command
@contextmanager
def open_application(app: str, make: Callable[[], A], bad: type[Exception]) -> Generator[A]:
    """Make the application and close it at the end. Raises `bad` for a database URL that cannot be used."""
    with translate_database_errors(app, bad):
        application = make()
    with closing(application):
        yield application


def run_migrations(app: str, application: Application) -> str:
    """Bring the database to this code's version, and return a message for the user."""
    create_sqlite_file(application.engine)
    # Fail at once if the server is unreachable. Interlock would retry for a while.
    application.engine.connect().close()
    application.migrate()
    return f"The {app}'s tables are ready at {display_url(application.engine)}."


@contextmanager
def log_to_stderr(level: int = logging.INFO) -> Generator[None]:
    """Write the log to stderr during the block. A repeated line appears a few times a minute."""
    # Each application reports start and stop itself, so uvicorn's own lines would repeat that.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s%(suppressed)s"))
    handler.addFilter(RepeatedLineFilter())
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)

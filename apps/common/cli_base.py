"""A program of commands: what is to be said against one is one sentence, and its exit code says whether all is well."""

import logging
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

import typer
from sqlalchemy.exc import DBAPIError

from interlock import InterlockError

from .application import Application
from .database import create_file, place, unasked, usable
from .repeats import Repeats
from .telling import remark

Made = TypeVar("Made", bound=Application)


def program(name: str, help: str, *, settings: str) -> typer.Typer:
    """Commands of this name, of which there are none yet. `settings` says where their settings come from."""
    return typer.Typer(
        name=name, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]}, help=help,
        epilog=f"Settings come from {settings}: see the README. Every command exits with 0 if all is well, with 1 if the answer is no "
        "or something went wrong, and with 2 if it was called wrongly.",
    )


def ended(
    commands: typer.Typer, arguments: Sequence[str] | None, own: type[Exception], called_wrongly: Callable[[Exception], bool], *,
    remark: Callable[[str], None] = remark, told: Callable[[Exception], str] = str,
) -> int | str | None:
    """Run the command, and answer its exit code. What it raises of the application's `own` errors, or of the engine's, is remarked as it is `told`."""
    app = str(commands.info.name)
    try:
        commands(args=None if arguments is None else list(arguments), prog_name=f"python -m apps.{app}")
    except SystemExit as end:
        return end.code
    except (own, InterlockError) as error:
        remark(f"{app}: {told(error)}")
        return 2 if called_wrongly(error) else 1
    except DBAPIError as error:
        remark(f"{app}: {unasked(error, app)}")
        return 1
    return 0


# ---------------------------------------------------------------- what a command works on
@contextmanager
def made(app: str, make: Callable[[], Made], bad: type[Exception]) -> Generator[Made]:
    """The application that is made so, closed at the end. A database that can never be used is `bad`, in one sentence."""
    with usable(app, bad):
        application = make()
    with closing(application):
        yield application


def migrated(app: str, application: Application) -> str:
    """Bring its database to this code's version, and say in one sentence that this is done."""
    create_file(application.engine)
    # A server that is away is said to be so now; the engine would go on asking for a while.
    application.engine.connect().close()
    application.migrate()
    return f"The {app}'s tables are ready at {place(application.engine)}."


@contextmanager
def logged(level: int = logging.INFO) -> Generator[None]:
    """Write the log from this level up to stderr during the block. A repeated line appears a few times a minute."""
    # uvicorn would log that it starts and stops, which every application logs itself.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s%(left_out)s"))
    handler.addFilter(Repeats())
    before = root.level
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)

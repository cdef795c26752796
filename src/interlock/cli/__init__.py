"""The command `interlock`. It exits with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2 if it was called wrongly."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typing_extensions import override

from ..errors import InterlockError
from . import audit, jobs, lifecycle, migrate, operate, screen, status, verify
from .bench import bench
from .demo import demo
from .target import ELSE, Miscalled
from .worker import worker

CODES = "Every command exits with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2 if it was called wrongly."


class Command(TyperCommand):
    """A command whose usage writes an argument as it is called: ID, not {ID}."""

    @override
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


commands = typer.Typer(
    name="interlock", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Durable jobs whose lifecycle is a declared state machine that the database enforces.",
    epilog=f"-A or INTERLOCK_APP names your app. The database is what --database names, {ELSE}. {CODES}",
)
commands.command(short_help="See what is promised: holders are killed and frozen")(demo)
commands.command(short_help="Make or update the tables, register lifecycles")(migrate.migrate)
commands.command(short_help="Run one worker, until a signal")(worker)
commands.command(short_help="List lifecycles, print one, or check a document")(lifecycle.lifecycle)
commands.command(cls=Command, short_help="Store a job and print its id")(jobs.enqueue)
commands.command("jobs", short_help="List jobs, newest first")(jobs.listing)
commands.command(cls=Command, short_help="Show a job, its executions and its history")(jobs.show)
commands.command(cls=Command, short_help="Say why a job is where it is")(operate.explain)
commands.command(cls=Command, short_help="End a waiting job, or ask a running one to stop")(jobs.cancel)
commands.command(cls=Command, short_help="Make new jobs of those that failed")(operate.redrive)
commands.command(cls=Command, short_help="End a job's hold")(operate.release)
commands.command(short_help="Count jobs, and name what needs a look")(status.status)
commands.command(short_help="List the workers")(status.workers)
commands.command(short_help="Check every rule over everything that is stored")(verify.verify)
commands.add_typer(audit.commands, name="audit", short_help="Take the history of deleted jobs out into a file")
commands.command(short_help="Measure one worker on a database of its own")(bench)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        screen.say(f"interlock {version('interlock')}")
        raise typer.Exit


@commands.callback()
def top(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")] = False) -> None:
    del version


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; what Interlock has to say against it is one sentence, never a traceback."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # What is left to print would be tried again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            screen.complain(f"The answer could not be written: {error.strerror}.")
        code = 1
    raise SystemExit(code)


def _run(arguments: Sequence[str] | None) -> int | str | None:
    try:
        commands(args=None if arguments is None else list(arguments), prog_name="interlock")
    except SystemExit as end:
        return end.code
    except Miscalled as error:
        screen.complain(str(error))
        return 2
    except InterlockError as error:
        screen.complain(str(error))
        return 1
    return 0

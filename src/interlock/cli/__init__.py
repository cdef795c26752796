"""The command `interlock`. It exits with 0 if all is well, with 1 if the answer is no or something went wrong, and with 2 if it was called wrongly."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ..errors import InterlockError
from . import audit, jobs, lifecycle, migrate, screen, verify
from .demo import demo
from .target import Miscalled, unreachable

commands = typer.Typer(
    name="interlock", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Durable jobs whose lifecycle is a declared state machine that the database enforces.",
    epilog="-A or INTERLOCK_APP names your app; --database, INTERLOCK_DATABASE_URL or DATABASE_URL its database, else the app's own, else sqlite:///interlock.db.",
)
commands.command(short_help="See what is promised: holders are killed and frozen")(demo)
commands.command(short_help="Make or update the tables, register lifecycles")(migrate.migrate)
commands.command(short_help="List lifecycles, print one, or check a document")(lifecycle.lifecycle)
commands.command(short_help="Store a job and print its id")(jobs.enqueue)
commands.command("jobs", short_help="List jobs, newest first")(jobs.listing)
commands.command(short_help="Show a job, its executions and its history")(jobs.show)
commands.command(short_help="End a waiting job, or ask a running one to stop")(jobs.cancel)
commands.command(short_help="Check every rule over everything that is stored")(verify.verify)
commands.add_typer(audit.commands, name="audit", short_help="Take the history of deleted jobs out into a file")


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
        commands(args=None if arguments is None else list(arguments), prog_name="interlock")
    except Miscalled as error:
        screen.complain(str(error))
        raise SystemExit(2) from None
    except InterlockError as error:
        screen.complain(str(error))
        raise SystemExit(1) from None
    except Exception as error:
        if (sentence := unreachable(error)) is None:
            raise
        screen.complain(sentence)
        raise SystemExit(1) from None

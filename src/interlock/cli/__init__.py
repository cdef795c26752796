"""The command `interlock`. Exit codes: 0 for success, 1 for a failure or a found problem, 2 for wrong usage."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption
from typing_extensions import override

from ..errors import InterlockError
from . import (
    audit_commands,
    batch_commands,
    change_commands,
    control_commands,
    job_commands,
    lifecycle_command,
    migrate_command,
    operator_commands,
    output,
    schedule_commands,
    status_commands,
    verify_command,
    workers_command,
)
from .bench_command import bench
from .common_options import ELSE, CommandError
from .demo import demo
from .worker_command import WORKER_VARIABLES, worker

CODES = "Exit codes: 0 for success, 1 for a failure or a found problem, 2 for wrong usage."


class Command(TyperCommand):
    """A command whose usage line shows arguments without braces: ID, not {ID}."""

    @override
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


class WorkerCommand(TyperCommand):
    """A command whose help explains environment variables once, and not at each option."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for option in self.params:
            if isinstance(option, TyperOption) and option.envvar is None:
                option.show_envvar = False


commands = typer.Typer(
    name="interlock",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run background jobs from your own database. "
    "You declare the states of each job; the database rejects any other transition.",
    epilog=f"-A or INTERLOCK_APP names your app. --database names the database, {ELSE}. {CODES}",
)
commands.command(short_help="Kill and freeze workers, and count the results")(demo)
commands.command(short_help="Create or update the tables, register lifecycles")(migrate_command.migrate)
commands.command(
    cls=WorkerCommand,
    short_help="Run a worker, or several, until a signal stops them",
    context_settings={"auto_envvar_prefix": WORKER_VARIABLES},
)(worker)
commands.command(short_help="List lifecycles, print one, or check a document")(lifecycle_command.lifecycle)
commands.command(cls=Command, short_help="Store a job and print its id")(job_commands.enqueue)
commands.command("jobs", short_help="List jobs, newest first")(job_commands.list_jobs)
commands.command(cls=Command, short_help="Show a job, its executions and its history")(job_commands.show)
commands.command(cls=Command, short_help="Explain the state of a job")(operator_commands.explain)
commands.command(cls=Command, short_help="Cancel waiting jobs, or ask running ones to stop")(change_commands.cancel)
commands.command(cls=Command, short_help="Reject waiting jobs")(change_commands.reject)
commands.command(cls=Command, short_help="Enqueue failed jobs again, as new jobs")(change_commands.redrive)
commands.command(cls=Command, short_help="Release a held job")(operator_commands.release)
commands.command(cls=Command, short_help="Answer the question of a job")(operator_commands.answer)
commands.command(cls=Command, short_help="Delete jobs that have ended")(change_commands.delete)
commands.command(short_help="Count jobs and list problems")(status_commands.status)
commands.command(short_help="List workers")(workers_command.workers)
commands.command(short_help="List queues and kinds, with their limits and pauses")(control_commands.queues)
commands.command(short_help="Limit running jobs and rates of a queue or kind")(control_commands.limit)
commands.command(short_help="Pause a queue or kind")(control_commands.pause)
commands.command(short_help="Resume a paused queue or kind")(control_commands.resume)
commands.command(short_help="List schedules, with their ticks and pauses")(schedule_commands.schedules)
commands.add_typer(schedule_commands.commands, name="schedule", short_help="Create, change, pause or run a schedule")
commands.command(short_help="List changes of limits, pauses and schedules")(control_commands.operations)
commands.command(short_help="List flows")(batch_commands.batches)
commands.command(cls=Command, short_help="Show a flow or a batch")(batch_commands.batch)
commands.command(short_help="Check every stored job against every rule")(verify_command.verify)
commands.add_typer(audit_commands.commands, name="audit", short_help="Move the history of deleted jobs to a file")
commands.command(short_help="Measure one worker on a temporary database")(bench)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.print_line(f"interlock {version('interlock')}")
        raise typer.Exit


@commands.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    del version


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. An Interlock error is printed as one sentence, never as a traceback."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # Python flushes stdout again at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            output.print_error(f"The output could not be written: {error.strerror}.")
        code = 1
    raise SystemExit(code)


def _run(arguments: Sequence[str] | None) -> int | str | None:
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # A supervisor starts its workers with the same arguments.
        commands(args=given, prog_name="interlock", obj=given)
    except SystemExit as end:
        return end.code
    except CommandError as error:
        output.print_error(str(error))
        return 2
    except InterlockError as error:
        output.print_error(str(error))
        return 1
    return 0

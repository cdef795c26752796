"""Runs an operation on many jobs for a command: counts them, asks, shows the progress, and prints the result."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..app import App
from ..errors import UsageError
from ..operate.bulk import BulkOperation
from ..operate.bulk_result import BulkResult
from ..store.selection import JobCount
from . import output
from .common_options import CommandError, login_name
from .filter_options import FilterOptions
from .job_ids import display_ids
from .job_views import print_jobs

FIRST = 10
"""How many jobs a dry run lists."""
INTERRUPTED = 130
PAST = {"cancel": "cancelled", "reject": "rejected", "redrive": "redriven", "delete": "deleted"}


@dataclass(frozen=True, slots=True)
class BulkCommand:
    """A command that changes all jobs that match its filters, with the options that were given."""

    verb: Literal["cancel", "reject", "redrive", "delete"]
    filters: FilterOptions
    by: str | None
    reason: str
    dry_run: bool
    yes: bool
    json: bool
    fresh: bool = False
    again: bool = False

    def is_wanted(self, ids: Sequence[str] | None) -> bool:
        """Return whether filters choose the jobs. `CommandError` if there are both ids and filters, or neither."""
        given = " ".join(option for option, _ in self.filters.named())
        if ids and given:
            raise CommandError(f"Both ids and filters ({given}) are given: name the jobs, or choose them by filters.")
        if ids and self.dry_run:
            raise CommandError("--dry-run counts the jobs that match filters: give filters instead of ids.")
        if not ids and not given:
            raise CommandError(
                f"Name the jobs to {self.verb}: give ids, or filters such as --kind, --state and --since."
            )
        return not ids

    def run(self, app: App[Any], *, named: bool) -> None:
        """Change the jobs. With `named`, -A names the app, so its kinds and states are known."""
        try:
            operation = app.bulk.prepare(
                self.verb,
                self.filters.read(app.database.store().inspect.now),
                by=self.by or login_name(),
                reason=self.reason,
                fresh=self.fresh,
                again=self.again,
            )
        except UsageError as error:
            raise CommandError(str(error)) from None
        if named and not operation.result.matched:
            self.filters.check_known(app)
        if self.dry_run:
            self._show(app, operation)
            return
        self._ask(operation.result)
        self._change(operation)

    def _skipped(self, count: JobCount) -> int:
        """Return how many of these jobs would be skipped because they were redriven before."""
        return 0 if self.again else count.redriven

    # ------------------------------------------------------------ before
    def _show(self, app: App[Any], operation: BulkOperation) -> None:
        """Print how many jobs match, by kind and state, and the first of them."""
        result, first = operation.result, operation.first(FIRST)
        if self.json:
            listed = [{"id": job.id, "kind": job.kind, "state": job.state} for job in first]
            output.print_json({**_fields(result), "dry_run": True, "first": listed})
            return
        if first:
            redriven = ("redriven before",) if self.verb == "redrive" else ()
            output.print_table(
                ("kind", "state", "jobs", *redriven),
                [
                    (count.kind, count.state, f"{count.jobs:,}", *((f"{count.redriven:,}",) if redriven else ()))
                    for count in result.counts
                ],
            )
            output.print_line(f"\nthe first {len(first)} of {_jobs(result.matched)}", style="bold")
            print_jobs(first, display_ids(app, [job.id for job in first]), app.database.store().inspect.now())
        skipped = sum(map(self._skipped, result.counts))
        before = f"; {skipped:,} {'was' if skipped == 1 else 'were'} redriven before, and would be skipped"
        output.print_note(f"{_match(result.matched)}{before if skipped else ''}. Nothing was changed.")

    def _ask(self, result: BulkResult) -> None:
        """Ask for confirmation in a terminal. Elsewhere, `CommandError` without --yes."""
        left = [(count.kind, count.state, count.jobs - self._skipped(count)) for count in result.counts]
        total = sum(jobs for _, _, jobs in left)
        if self.yes or not total:
            return
        counts = ", ".join(f"{kind} {state} {jobs:,}" for kind, state, jobs in left if jobs)
        what = output.sanitize(f"{self.verb} {_jobs(total)} ({counts})")
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(f"This would {what}. Give --yes to do it, or --dry-run to list the first jobs.")
        if not typer.confirm(f"{what[0].upper()}{what[1:]}?", err=True):
            output.print_note("Nothing was changed.")
            raise typer.Exit(1)

    # ------------------------------------------------------------ the change
    def _change(self, operation: BulkOperation) -> None:
        result = operation.result
        try:
            with _progress(result.matched) as show:
                for _ in operation.batches():
                    show(result.done)
        except KeyboardInterrupt:
            self._print(result)
            output.print_note("Interrupted. The jobs changed so far are stored; run the command again to continue.")
            raise typer.Exit(INTERRUPTED) from None
        except Exception:
            output.print_note(
                f"{_jobs(result.changed)} {PAST[self.verb]} before an error; run the command again to continue."
            )
            raise
        self._print(result)
        if result.failed:
            raise typer.Exit(1)

    def _print(self, result: BulkResult) -> None:
        if self.json:
            output.print_json({**_fields(result), "dry_run": False})
        else:
            output.print_line(f"{_jobs(result.changed - result.asked_to_stop)} {PAST[self.verb]}")
            if result.asked_to_stop:
                output.print_line(f"{_jobs(result.asked_to_stop)} asked to stop")
            for reason, jobs in result.skipped.items():
                output.print_line(f"{_jobs(jobs)} skipped: {reason}")
            if result.failed:
                output.print_line(f"{_jobs(result.failed)} failed")
        for each in result.errors:
            output.print_error(each.error if each.job_id in each.error else f"Job {each.job_id}: {each.error}")
        if (more := result.failed - len(result.errors)) > 0:
            output.print_note(f"{more:,} more {'job' if more == 1 else 'jobs'} failed.")


def _fields(result: BulkResult) -> dict[str, Any]:
    return {"matched": result.matched, **{each.name: getattr(result, each.name) for each in fields(result)}}


def _jobs(count: int) -> str:
    return f"{count:,} job" if count == 1 else f"{count:,} jobs"


def _match(count: int) -> str:
    return f"{_jobs(count)} {'matches' if count == 1 else 'match'}"


@contextmanager
def _progress(total: int) -> Generator[Callable[[int], object]]:
    """Yield a function that shows how many jobs are done: as a bar in a terminal, elsewhere as a line at each tenth."""
    if not sys.stderr.isatty():
        yield _Lines(total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("jobs"), TimeRemainingColumn())
    with Progress(*columns, console=output.make_console(stderr=True), transient=True) as progress:
        task = progress.add_task("jobs", total=total)
        yield lambda done: progress.update(task, completed=done)


class _Lines:
    """Prints a line for each tenth of the jobs, except the last."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = 0

    def __call__(self, done: int) -> None:
        tenth = 10 * done // max(self._total, 1)
        if self._shown < tenth < 10:
            self._shown = tenth
            output.print_note(f"{done:,} of {_jobs(self._total)}")

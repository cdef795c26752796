"""`interlock verify`: checks every stored job against every rule."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..operate.verify import Report
from ..operate.verify import verify as verified
from ..store.contract import Store
from ..store.types import JobRecord
from . import output
from .common_options import AppOption, DatabaseOption, JsonOption, open_app


def verify(app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """Recompute every job's state from its executions and history, and check every rule. Changes nothing.

    Exits with 1 and lists each violation if a rule is broken.

    Example: interlock verify --json
    """
    with open_app(app, database) as chosen:
        store = chosen.database.store()
        with _watching(store) as watched:
            report = verified(watched)
    if json:
        output.print_json(report)
    else:
        for one in report.violations:
            output.print_line(f"{one.rule}: job {one.job_id}: {one.detail}", style="red")
        output.print_line(summarize(report), style="bold green" if report.ok else "bold red")
    if not report.ok:
        raise typer.Exit(1)


def summarize(report: Report) -> str:
    """Summarize the report in a sentence."""
    jobs = f"{report.checked:,} {'job' if report.checked == 1 else 'jobs'} checked"
    if report.ok:
        return f"{jobs}: every rule holds."
    count = len(report.violations) + report.left_out
    unlisted = f", {report.left_out:,} of them not listed" if report.left_out else ""
    return f"{jobs}: {count:,} {'violation' if count == 1 else 'violations'}{unlisted}."


class _Watched:
    """The two parts of a store that a verification uses. It counts the checked jobs."""

    def __init__(self, store: Store, passed: Callable[[int], None]) -> None:
        self._store = store
        self._passed = passed
        self.registry = store.registry
        self.inspect = self

    def job_records(self, size: int = 1000) -> Iterator[list[JobRecord]]:
        for page in self._store.inspect.job_records(size):
            yield page
            self._passed(len(page))


@contextmanager
def _watching(store: Store) -> Generator[Store]:
    """Yield the store, with a progress bar on the terminal."""
    if not sys.stderr.isatty():
        yield store
        return
    total = sum(count for states in store.inspect.counts().values() for count in states.values())
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(*columns, console=output.make_console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=total)
        yield cast("Store", _Watched(store, lambda jobs: progress.advance(task, jobs)))

"""`interlock verify`: every rule, over everything that is stored."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..lifecycle import Lifecycle
from ..records import Dossier
from ..store import Store
from ..verify import Report
from ..verify import verify as verified
from . import screen
from .target import AppOption, DatabaseOption, JsonOption, opened


def verify(app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """Recompute every job's state from its executions and from its history, and check every rule. It writes nothing.

    Exits with 1, and names each violation, if a rule is broken.

    Example: interlock verify --json
    """
    with opened(app, database) as chosen:
        store = chosen.database.store()
        with _watching(store) as watched:
            report = verified(watched)
    if json:
        screen.as_json(report)
    else:
        for one in report.violations:
            screen.say(f"{one.rule}: job {one.job_id}: {one.detail}", style="red")
        screen.say(verdict(report), style="bold green" if report.ok else "bold red")
    if not report.ok:
        raise typer.Exit(1)


def verdict(report: Report) -> str:
    """What the report comes to, in a sentence."""
    jobs = f"{report.checked:,} {'job' if report.checked == 1 else 'jobs'} checked"
    if report.ok:
        return f"{jobs}: every rule holds."
    count = len(report.violations) + report.left_out
    unlisted = f", {report.left_out:,} of them not listed" if report.left_out else ""
    return f"{jobs}: {count:,} {'violation' if count == 1 else 'violations'}{unlisted}."


class _Watched:
    """The two verbs that a verification uses, with a count of the jobs that went by."""

    def __init__(self, store: Store, passed: Callable[[int], None]) -> None:
        self._store = store
        self._passed = passed

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        return self._store.lifecycle(name, version)

    def dossiers(self, size: int = 1000) -> Iterator[list[Dossier]]:
        for page in self._store.dossiers(size):
            yield page
            self._passed(len(page))


@contextmanager
def _watching(store: Store) -> Generator[Store]:
    """The store, with a bar on the terminal that grows as its jobs are checked."""
    if not sys.stderr.isatty():
        yield store
        return
    total = sum(count for states in store.counts().values() for count in states.values())
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(*columns, console=screen.console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=total)
        yield cast("Store", _Watched(store, lambda jobs: progress.advance(task, jobs)))

"""The commands `cancel`, `reject`, `redrive` and `delete`, for jobs by id or for all jobs that match filters."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from ..app import App
from ..core.job import Job
from ..errors import InterlockError
from . import output
from .bulk_run import BulkCommand
from .common_options import AppOption, ByOption, DatabaseOption, JsonOption, login_name, open_app
from .filter_options import (
    ErrorLikeOption,
    FilterOptions,
    KindOption,
    PhaseOption,
    QueueOption,
    SinceOption,
    StateOption,
    TagOption,
    UntilOption,
)
from .job_commands import ReasonOption, find_job

T = TypeVar("T")
IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", help="The jobs' ids, or unique prefixes of them. Without ids, filters choose the jobs."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show how many jobs match, by kind and state, and change nothing.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Change the jobs that match without asking; needed if there is no terminal.")
]


def cancel(
    ids: IdsArgument = None,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    phase: PhaseOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_like: ErrorLikeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    by: ByOption = None,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Cancel waiting jobs, and ask running ones to stop. A running job may still succeed.

    Name the jobs, or choose them by filters. Kinds with a hook on the cancelled state need -A, so that the hook can
    run.

    Exits with 1 if a job that was named could not be cancelled, or an error kept one from it; the other jobs are still
    cancelled. Of jobs chosen by filters, those that cannot be cancelled are skipped.

    Example: interlock cancel ID --reason "ordered twice"

    Example: interlock cancel --kind remind --since 1h --dry-run
    """
    filters = FilterOptions(kind, state, phase, queue, tag, since, until, error_like)
    bulk = BulkCommand("cancel", filters, by, reason, dry_run, yes, json)
    many = bulk.is_wanted(ids)
    with open_app(app, database) as chosen:
        if many:
            bulk.run(chosen, named=app is not None)
            return
        who = by or login_name()
        pairs, refused = _each(chosen, ids, lambda job: (job, chosen.cancel(job.id, by=who, reason=reason)))
    if json:
        _print_jobs([job for _, job in pairs], ids)
    for before, job in () if json else pairs:
        if before.ended:
            output.print_line(f"{job.id} had already ended as {job.state}")
        elif job.ended:
            output.print_line(f"{job.id} ended as {job.state}")
        else:
            output.print_line(f"{job.id} is running in {job.state}; asked it to stop")
    _exit(refused)


def reject(
    ids: IdsArgument = None,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    phase: PhaseOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_like: ErrorLikeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    by: ByOption = None,
    reason: Annotated[str, typer.Option(help="Why you reject them; stored in the history of each job.")],
    json: JsonOption = False,
) -> None:
    """Reject waiting jobs whose lifecycle has a `reject` transition from their state.

    Name the jobs, or choose them by filters. Kinds with a hook on the rejected state need -A, so that the hook can run.

    Exits with 1 if a job that was named could not be rejected, or an error kept one from it; the other jobs are still
    rejected. Of jobs chosen by filters, those that cannot be rejected are skipped.

    Example: interlock reject --kind image --tag user=7 --reason "stolen card" --yes
    """
    filters = FilterOptions(kind, state, phase, queue, tag, since, until, error_like)
    bulk = BulkCommand("reject", filters, by, reason, dry_run, yes, json)
    many = bulk.is_wanted(ids)
    with open_app(app, database) as chosen:
        if many:
            bulk.run(chosen, named=app is not None)
            return
        who = by or login_name()
        jobs, refused = _each(chosen, ids, lambda job: chosen.reject(job.id, by=who, reason=reason))
    if json:
        _print_jobs(jobs, ids)
    for job in () if json else jobs:
        output.print_line(f"{job.id} ended as {job.state}")
    _exit(refused)


def redrive(
    ids: IdsArgument = None,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    phase: PhaseOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_like: ErrorLikeOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="With filters: include the jobs that were redriven before.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard saved steps and effects; the new job runs them again.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    by: ByOption = None,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Enqueue failed jobs again as new jobs. The old jobs do not change.

    Name the jobs, and the command prints the new ids; or choose them by filters. Filters leave out cancelled, rejected
    and expired jobs, unless --state names their state, and skip jobs that were redriven before. With -A, the current
    code of your app checks the payloads.

    Exits with 1 if a job that was named could not be redriven, or an error kept one from it; the other jobs are still
    redriven. Of jobs chosen by filters, those that cannot be redriven are skipped.

    Example: interlock redrive -A shop:app ID --reason "the bank is back"

    Example: interlock redrive -A shop:app --kind pay --since 2h --error-like timeout --reason "the bank is back"
    """
    filters = FilterOptions(kind, state, phase, queue, tag, since, until, error_like)
    bulk = BulkCommand("redrive", filters, by, reason, dry_run, yes, json, fresh=fresh, again=again)
    many = bulk.is_wanted(ids)
    with open_app(app, database) as chosen:
        if many:
            bulk.run(chosen, named=app is not None)
            return
        who = by or login_name()

        def redrive_one(job: Job) -> dict[str, object]:
            new = chosen.redrive(job.id, by=who, reason=reason, fresh=fresh).id
            return {"id": new, "redrive_of": job.id, "redriven_before": _note_earlier(chosen, job.id, new)}

        made, refused = _each(chosen, ids, redrive_one)
    if json:
        output.print_json(made)
    for one in () if json else made:
        output.print_line(one["id"])
    _exit(refused)


def delete(
    ids: IdsArgument = None,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    phase: PhaseOption = None,
    queue: QueueOption = None,
    tag: TagOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_like: ErrorLikeOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    by: ByOption = None,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Delete jobs that have ended, with their executions and receipts. Their history stays, and says who deleted them.

    Name the jobs, or choose them by filters. Exits with 1 if a job that was named could not be deleted, or an
    error kept one from it; the other jobs are still deleted. Of jobs chosen by filters, those that cannot be deleted
    are skipped.

    Example: interlock delete --kind import --state FAILED --until 30d --dry-run
    """
    filters = FilterOptions(kind, state, phase, queue, tag, since, until, error_like)
    bulk = BulkCommand("delete", filters, by, reason, dry_run, yes, json)
    many = bulk.is_wanted(ids)
    with open_app(app, database) as chosen:
        if many:
            bulk.run(chosen, named=app is not None)
            return
        who = by or login_name()
        jobs, refused = _each(chosen, ids, lambda job: chosen.delete(job.id, by=who, reason=reason))
    if json:
        _print_jobs(jobs, ids)
    for job in () if json else jobs:
        output.print_line(f"{job.id} deleted; it had ended as {job.state}")
    _exit(refused)


def _each(app: App[Any], ids: Sequence[str] | None, work: Callable[[Job], T]) -> tuple[list[T], bool]:
    """Do the work for each named job, once. Of several, an error of one is printed and does not stop the others.

    Returns the results, and whether there was an error.
    """
    given = ids or ()
    results, refused = dict[str, T](), False
    for id in given:
        try:
            job = find_job(app, id)
            if job.id not in results:
                results[job.id] = work(job)
        except InterlockError as error:
            if len(given) == 1:
                raise
            output.print_error(str(error))
            refused = True
    return list(results.values()), refused


def _note_earlier(app: App[Any], old: str, new: str) -> bool:
    """Say if the job was redriven before. Its history has all redrives in order."""
    notes = [entry for entry in app.history(old) if entry.event == "redrive" and entry.reason]
    earlier = notes[: next((n for n, entry in enumerate(notes) if new in str(entry.reason)), 0)]
    if earlier:
        output.print_note(f"Job {old} was redriven before, {earlier[-1].reason} ({earlier[-1].actor}).")
    return bool(earlier)


def _print_jobs(jobs: Sequence[Job], ids: Sequence[str] | None) -> None:
    """Print the job as JSON; if several were named, a list."""
    output.print_json(jobs[0] if len(ids or ()) == 1 else jobs)


def _exit(refused: bool) -> None:
    if refused:
        raise typer.Exit(1)

"""The commands `batches` and `batch`."""

from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer

from ..app import App
from ..errors import NotFound
from ..store.flow_types import BatchProgress
from . import output
from .arguments import format_age
from .common_options import AppOption, DatabaseOption, JsonOption, open_app
from .job_ids import display_ids

HEADER = ("id", "name", "jobs", "ended", "failed", "running", "waiting", "blocked", "created")


def batches(
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    number: Annotated[int, typer.Option("-n", min=1, help="How many to list.")] = 20,
    json: JsonOption = False,
) -> None:
    """List flows, newest first, with how many of their jobs have ended, failed, run or wait.

    Example: interlock batches -n 5
    """
    with open_app(app, database) as chosen:
        store = chosen.database.store()
        found, now = store.flow.batches(limit=number), store.inspect.now()
    if json:
        output.print_json([_fields(one) for one in found])
        return
    if not found:
        output.print_note("There are no flows: store one with app.flow(…).")
        return
    output.print_table(HEADER, [_row(one, now) for one in found])


def batch(
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a flow or a batch.")],
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Show a flow or a batch: its batches, and its jobs that have failed, run or wait.

    A failed job that was redriven is left out: the job that redrives it takes its place.

    Example: interlock batch ID
    """
    with open_app(app, database) as chosen:
        store = chosen.database.store()
        one, now = store.flow.batch(_find(chosen, id)), store.inspect.now()
        parts = store.flow.batches(parent=one.id, limit=1000)
        phases = ("failed", "running", "pending")
        jobs = [job for phase in phases for job in store.flow.members(one.id, phase=phase, limit=20, redriven=False)]
        ids = display_ids(chosen, [job.id for job in jobs])
    if json:
        output.print_json(_fields(one) | {"batches": [_fields(each) for each in parts], "jobs": jobs})
        return
    output.print_table(HEADER, [_row(each, now) for each in (one, *parts)])
    if jobs:
        output.print_line()
        rows = [(ids[job.id], job.kind, job.state, "blocked" if job.blocked_at else job.phase) for job in jobs]
        output.print_table(("id", "kind", "state", "phase"), rows)


def _find(app: App[Any], id: str) -> str:
    """Find a flow by a unique prefix of its id, or a batch by its full id. `NotFound` if none or several match."""
    try:
        return str(UUID(id))
    except ValueError:
        matching = [one.id for one in app.database.store().flow.batches(limit=1000) if one.id.startswith(id)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise NotFound(f"{id!r} is the start of {len(matching)} flow ids: give more characters.")
    raise NotFound(f"There is no flow or batch {id!r}. interlock batches lists flows; give the full id of a batch.")


def _fields(one: BatchProgress) -> dict[str, Any]:
    return asdict(one) | {"total": one.total, "ended": one.ended}


def _row(one: BatchProgress, now: Any) -> tuple[object, ...]:
    return (
        one.id,
        one.name,
        one.total,
        one.succeeded + one.failed,
        one.failed,
        one.running,
        one.waiting,
        one.blocked,
        f"{format_age((now - one.created_at).total_seconds())} ago",
    )

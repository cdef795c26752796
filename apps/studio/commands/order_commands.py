"""Commands about pictures: order one, watch it, save it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from apps.common.ids import SHORTEST
from apps.common.telling import as_json, moment, plain, remark, say, shortened, table, width

from .desk import PROGRAM, Desk, Miscalled, operator, staffed
from .errors import StudioError
from .gallery import Job
from .order import PRICES, Params
from .telling import ACTIVE, IdArgument, JsonOption, amount, excerpt, how_it_stands, listed

EVERY = 0.5
"""Seconds between two looks."""
NEW = "queued"
"""So a job begins, however quick a worker may have been since."""

ordering = typer.Typer(rich_markup_mode=None)


# ---------------------------------------------------------------- one order
@ordering.command(short_help="Order a picture")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who pays for it.")],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What is to be drawn.")],
    size: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help=f"One of {', '.join(PRICES)}.")] = Params.size,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same one draws the same picture, if the provider can.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Stay, and show how it stands, until it has ended.")] = False,
) -> None:
    """Order a picture, or find the job of the same order within this minute.

    With --follow it exits as the command follow does.
    """
    with staffed() as desk:
        user = desk.people.named(name)
        made = desk.counter.create_job(user.id, prompt, Params(size, seed))
        job, left = desk.found(made.id), desk.people.balance(user.id).available
        stands = NEW if made.created else how_it_stands(job)
        say(f"{job.id} is {stands}; {amount(job.cost)} set aside, {left} left" if made.created else f"{job.id} was ordered already: {stands}")
        if follow:
            raise typer.Exit(_follow(desk, job.id, said=stands))
        remark(desk.unstaffed() or f"Next: watch it with `{PROGRAM} follow {job.id}`, or at the page.")


@ordering.command(short_help="Show how a job stands, until it ends")
def follow(id: IdArgument) -> None:
    """Show how a job stands, a line for each change, until it has ended.

    Exits with 0 if it completed, and with 1 if it was rejected or buried. Ctrl-C ends the looking, with 130, and not the job.
    """
    with staffed() as desk:
        raise typer.Exit(_follow(desk, desk.found(id).id))


def _wait() -> None:
    time.sleep(EVERY)


def _follow(desk: Desk, id: str, *, said: str = "", wait: Callable[[], None] = _wait) -> int:
    job = desk.found(id)
    if job.status in ACTIVE and (unstaffed := desk.unstaffed()) is not None:
        remark(unstaffed)
    try:
        while job.status in ACTIVE:
            if (line := how_it_stands(job)) != said:
                say(said := line)
            wait()
            job = desk.found(id)
    except KeyboardInterrupt:
        remark(f"The job goes on: look again with `follow {id}`.")
        return 130
    say(plain(f"completed: the picture is at {desk.stored_at(job)}") if job.status == "completed" else how_it_stands(job))
    if (hint := _next(job)) is not None:
        remark(hint)
    return 0 if job.status == "completed" else 1


def _next(job: Job) -> str | None:
    if job.status == "completed":
        return f"Next: see it at the page, or save a copy with `{PROGRAM} save {job.id} picture.png`."
    return f"Next: `{PROGRAM} dead show {job.id}` says what can be done." if job.status == "dead_letter" else None


# ---------------------------------------------------------------- all of them
@ordering.command("jobs", short_help="List the jobs, newest first")
def list_jobs(
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only this user's.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many.")] = 50,
    json: JsonOption = False,
) -> None:
    """List everybody's jobs, newest first."""
    with staffed() as desk:
        found = desk.jobs(user, limit)
        names = {each.id: each.name for each in desk.people.all()}
    wide = width()
    ids = [job.id for job in found] if wide is None else shortened([job.id for job in found], SHORTEST)
    rows = [
        (id, moment(job.created_at), job.status, names[job.user_id], job.size, job.cost, excerpt(job.prompt, wide))
        for id, job in zip(ids, found, strict=True)]
    columns = "id", "created", "status", "user", "size", "cost", "prompt"
    say(as_json(found, indent=2) if json else table(columns, rows, width=wide, cut=["prompt", "user"]))


@ordering.command(short_help="Show all that is known of a job")
def show(id: IdArgument, json: JsonOption = False) -> None:
    """Show all that is known of a job, and where its picture is."""
    with staffed() as desk:
        job = desk.found(id)
        user = next(each.name for each in desk.people.all() if each.id == job.user_id)
        known: dict[str, object] = {"id": job.id, "user": user}
        known |= {field.name: getattr(job, field.name) for field in fields(job)} | {"stored_at": desk.stored_at(job)}
    told = {name: moment(value) if isinstance(value, datetime) else value for name, value in known.items() if value is not None}
    say(as_json(known, indent=2) if json else listed(told))


@ordering.command(short_help="Save a copy of a picture")
def save(id: IdArgument, file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; nothing is ever overwritten.")]) -> None:
    """Save a copy of a completed job's picture."""
    with staffed() as desk:
        job = desk.found(id)
        if job.status != "completed":
            raise StudioError(f"Job {job.id} is {job.status}, so there is no picture: `follow {job.id}` shows how it goes on.")
        asset = desk.gallery.asset(job.id)
        data = asyncio.run(desk.studio.means.originals.read(asset.path))
    if file.is_dir():
        raise Miscalled(f"{str(file)!r} is a directory: give the name of a file, as in picture.png.")
    try:
        with file.open("xb") as out:
            out.write(data)
    except FileExistsError:
        raise Miscalled(f"There is a file {str(file)!r} already: give another name.") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "that is no path"
        raise Miscalled(f"{str(file)!r} cannot be written ({why}): give another place.") from None
    say(plain(f"{file} has the picture: {asset.content_type}, {asset.bytes:,} bytes."))


@ordering.command(short_help="Reject a job that waits, as unsafe")
def reject(id: IdArgument, reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stands in the audit.")]) -> None:
    """Reject a job that is queued. Its credits are kept, as if the safety filter had refused it."""
    with staffed() as desk:
        job = desk.found(id)
        desk.counter.reject(job.id, by=operator(), reason=reason)
    say(f"{job.id} is rejected; {amount(job.cost)} {'is' if job.cost == 1 else 'are'} kept.")

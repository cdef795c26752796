"""Commands for orders: create, follow, list, show, save and reject them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from apps.common.formatting import (
    format_table,
    format_time,
    plain_text,
    say,
    shorten_ids,
    terminal_width,
    to_json,
    warn,
)
from apps.common.job_ids import MIN_PREFIX

from ..errors import StudioError
from ..formatting import ACTIVE, IdArgument, JsonOption, excerpt, format_credits, format_fields, format_status
from ..gallery import Job
from ..order import PRICES, Params
from ..service import PROGRAM, CommandError, Service, open_service, operator

POLL_SECONDS = 0.5
"""Seconds between two polls."""
QUEUED = "queued"
"""The first state of a job, even if a worker has already claimed it."""

order_commands = typer.Typer(rich_markup_mode=None)


# ---------------------------------------------------------------- one order
@order_commands.command(short_help="Order a picture")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user who pays for it.")],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A description of the picture.")],
    size: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help=f"One of {', '.join(PRICES)}.")] = Params.size,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="The same seed draws the same picture, if the provider supports seeds."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Print each change of status until the job ends.")] = False,
) -> None:
    """Order a picture. An identical order within the same minute returns the same job.

    With --follow it exits as the command follow does.
    """
    with open_service() as service:
        user = service.users.named(name)
        made = service.orders.create_job(user.id, prompt, Params(size, seed))
        job, left = service.find_job(made.id), service.users.balance(user.id).available
        status = QUEUED if made.created else format_status(job)
        say(
            f"{job.id} is {status}; {format_credits(job.cost)} reserved, {left} left"
            if made.created
            else f"{job.id} was already ordered: {status}"
        )
        if follow:
            raise typer.Exit(_follow(service, job.id, printed=status))
        warn(service.no_worker_warning() or f"Next: follow it with `{PROGRAM} follow {job.id}` or on the page.")


@order_commands.command(short_help="Follow a job until it ends")
def follow(id: IdArgument) -> None:
    """Print each change of a job's status until it ends.

    Exits with 0 if the job completed, with 1 if it was rejected or became a dead letter, and with 130 after Ctrl-C,
    which does not stop the job.
    """
    with open_service() as service:
        raise typer.Exit(_follow(service, service.find_job(id).id))


def _wait() -> None:
    time.sleep(POLL_SECONDS)


def _follow(service: Service, id: str, *, printed: str = "", wait: Callable[[], None] = _wait) -> int:
    job = service.find_job(id)
    if job.status in ACTIVE and (warning := service.no_worker_warning()) is not None:
        warn(warning)
    try:
        while job.status in ACTIVE:
            if (line := format_status(job)) != printed:
                say(printed := line)
            wait()
            job = service.find_job(id)
    except KeyboardInterrupt:
        warn(f"The job continues. Follow it again with `follow {id}`.")
        return 130
    say(
        plain_text(f"completed: the picture is at {service.stored_at(job)}")
        if job.status == "completed"
        else format_status(job)
    )
    if (hint := _next_step(job)) is not None:
        warn(hint)
    return 0 if job.status == "completed" else 1


def _next_step(job: Job) -> str | None:
    if job.status == "completed":
        return f"Next: open it on the page, or save a copy with `{PROGRAM} save {job.id} picture.png`."
    return f"Next: `{PROGRAM} dead show {job.id}` shows what to do." if job.status == "dead_letter" else None


# ---------------------------------------------------------------- all orders
@order_commands.command("jobs", short_help="List jobs, newest first")
def list_jobs(
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this user.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="The largest number of jobs.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the jobs of all users, newest first."""
    with open_service() as service:
        found = service.jobs(user, limit)
        names = {each.id: each.name for each in service.users.all()}
    wide = terminal_width()
    ids = [job.id for job in found] if wide is None else shorten_ids([job.id for job in found], MIN_PREFIX)
    rows = [
        (id, format_time(job.created_at), job.status, names[job.user_id], job.size, job.cost, excerpt(job.prompt, wide))
        for id, job in zip(ids, found, strict=True)
    ]
    columns = "id", "created", "status", "user", "size", "cost", "prompt"
    say(to_json(found, indent=2) if json else format_table(columns, rows, width=wide, cut=["prompt", "user"]))


@order_commands.command(short_help="Show a job")
def show(id: IdArgument, json: JsonOption = False) -> None:
    """Show all fields of a job and the location of its picture."""
    with open_service() as service:
        job = service.find_job(id)
        user = next(each.name for each in service.users.all() if each.id == job.user_id)
        known: dict[str, object] = {"id": job.id, "user": user}
        known |= {field.name: getattr(job, field.name) for field in fields(job)} | {"stored_at": service.stored_at(job)}
    shown = {
        name: format_time(value) if isinstance(value, datetime) else value
        for name, value in known.items()
        if value is not None
    }
    say(to_json(known, indent=2) if json else format_fields(shown))


@order_commands.command(short_help="Save a copy of a picture")
def save(
    id: IdArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to create. An existing file is not overwritten.")
    ],
) -> None:
    """Save a copy of a completed job's picture."""
    with open_service() as service:
        job = service.find_job(id)
        if job.status != "completed":
            raise StudioError(
                f"Job {job.id} is {job.status}, so it has no picture. `follow {job.id}` shows its progress."
            )
        asset = service.gallery.asset(job.id)
        data = asyncio.run(service.studio.dependencies.originals.read(asset.path))
    if file.is_dir():
        raise CommandError(f"{str(file)!r} is a directory. Give a file name, such as picture.png.")
    try:
        with file.open("xb") as out:
            out.write(data)
    except FileExistsError:
        raise CommandError(f"The file {str(file)!r} already exists. Choose another name.") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a valid path"
        raise CommandError(f"Cannot write {str(file)!r} ({why}). Choose another file.") from None
    say(plain_text(f"Saved {file}: {asset.content_type}, {asset.bytes:,} bytes."))


@order_commands.command(short_help="Reject a queued job as unsafe")
def reject(
    id: IdArgument, reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the audit.")]
) -> None:
    """Reject a queued job as unsafe. Its credits are not refunded, as after a rejection by the safety filter."""
    with open_service() as service:
        job = service.find_job(id)
        service.orders.reject(job.id, by=operator(), reason=reason)
    say(f"Rejected {job.id}; {format_credits(job.cost)} {'is' if job.cost == 1 else 'are'} not refunded.")

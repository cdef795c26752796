"""How a job is told to the staff."""

from typing import Annotated

import typer

from apps.common.telling import moment, plain

from .desk import SHORTEST
from .gallery import Job

ACTIVE = frozenset({"queued", "running", "failed"})
"""Where a job goes on by itself."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help=f"The job's id, or its first {SHORTEST} characters or more.")]


def amount(credits: int) -> str:
    return f"{credits} {'credit' if credits == 1 else 'credits'}"


def how_it_stands(job: Job) -> str:
    """A job's status, and what is known besides of one that went wrong."""
    told = job.status if job.status in ("queued", "running", "completed") or not job.last_error else f"{job.status}: {job.last_error}"
    if job.status == "failed":
        told = f"{told} (failure {job.retry_count} of {job.max_retries}, on it goes at {moment(job.due_at)})"
    return plain(told)

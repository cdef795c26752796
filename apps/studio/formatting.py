"""How a job is told to the staff."""

from collections.abc import Mapping
from typing import Annotated

import typer

from apps.common.ids import SHORTEST
from apps.common.telling import moment, plain

from .gallery import INTERRUPTED, Job

ACTIVE = frozenset({"queued", "running", "failed"})
"""Where a job goes on by itself."""
SHOWN = 60
"""Characters of a prompt in a list that no terminal cuts."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help=f"The job's id, or its first {SHORTEST} characters or more.")]


def amount(credits: int) -> str:
    return f"{credits} {'credit' if credits == 1 else 'credits'}"


def excerpt(prompt: str, width: int | None) -> str:
    """A prompt as a cell of a table: for a terminal of this width the table cuts it, and elsewhere nobody would."""
    line = plain(prompt)
    return line if width is not None or len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"


def listed(known: Mapping[str, object]) -> str:
    """What is known of one thing, a line each."""
    wide = max(map(len, known), default=0) + 2
    return "\n".join(f"{name:<{wide}}{plain(value)}" for name, value in known.items())


def how_it_stands(job: Job) -> str:
    """A job's status, and what is known besides of one that went wrong."""
    if job.interrupted:
        return f"{job.status}: {INTERRUPTED}"
    told = job.status if job.status in ("queued", "running", "completed") or not job.last_error else f"{job.status}: {job.last_error}"
    if job.status == "failed":
        told = f"{told} (failure {job.retry_count} of {job.max_retries}, on it goes at {moment(job.due_at)})"
    return plain(told)

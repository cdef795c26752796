"""Formats jobs and credits for the command line."""

from collections.abc import Mapping
from typing import Annotated

import typer

from apps.common.formatting import format_time, plain_text
from apps.common.job_ids import MIN_PREFIX

from .gallery import INTERRUPTED, Job

ACTIVE = frozenset({"queued", "running", "failed"})
"""States that a job leaves without a person's decision."""
SHOWN = 60
"""Characters of a prompt in a table that is not printed to a terminal."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help=f"The job's ID, or a unique prefix of at least {MIN_PREFIX} characters.")
]


def format_credits(credits: int) -> str:
    return f"{credits} {'credit' if credits == 1 else 'credits'}"


def excerpt(prompt: str, width: int | None) -> str:
    """Return a prompt as a table cell. The table shortens it for a terminal; without a terminal, this function does."""
    line = plain_text(prompt)
    return line if width is not None or len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"


def format_fields(known: Mapping[str, object]) -> str:
    """Format fields as aligned lines of name and value."""
    wide = max(map(len, known), default=0) + 2
    return "\n".join(f"{name:<{wide}}{plain_text(value)}" for name, value in known.items())


def format_status(job: Job) -> str:
    """Format a job's status, with the last error and the next attempt if there are any."""
    if job.interrupted:
        return f"{job.status}: {INTERRUPTED}"
    text = (
        job.status
        if job.status in ("queued", "running", "completed") or not job.last_error
        else f"{job.status}: {job.last_error}"
    )
    if job.status == "failed":
        text = f"{text} (failure {job.retry_count} of {job.max_retries}, next attempt at {format_time(job.due_at)})"
    return plain_text(text)

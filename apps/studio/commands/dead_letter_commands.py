"""Commands for dead letters: list, show, redrive and close them."""

from typing import Annotated

import typer

from apps.common.formatting import format_table, format_time, say, shorten_ids, terminal_width, to_json, warn
from apps.common.job_ids import MIN_PREFIX

from ..dead_letters import DeadLetter
from ..formatting import IdArgument, JsonOption, excerpt, format_credits, format_fields
from ..service import PROGRAM, open_service, operator

dead_letter_commands = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Review jobs that failed for good."
)


@dead_letter_commands.command("list", short_help="List dead letters without a decision")
def list_dead(
    every: Annotated[bool, typer.Option("--all", help="Include dead letters with a decision.")] = False,
    json: JsonOption = False,
) -> None:
    """List dead letters without a decision, newest first."""
    with open_service() as service:
        found = service.dead_letters.every() if every else service.dead_letters.open()
    if json:
        say(to_json(found, indent=2))
        return
    if not found:
        say("There are no dead letters." if every else "No dead letters to review.")
        return
    wide = terminal_width()
    ids = (
        [letter.job.id for letter in found]
        if wide is None
        else shorten_ids([letter.job.id for letter in found], MIN_PREFIX)
    )
    rows = [
        (id, letter.user_name, letter.decision or "open", excerpt(letter.job.prompt, wide), letter.reason)
        for id, letter in zip(ids, found, strict=True)
    ]
    say(format_table(("id", "user", "decision", "prompt", "reason"), rows, width=wide, cut=["prompt", "reason"]))
    if any(letter.decision is None for letter in found):
        warn(f"Next: `{PROGRAM} dead redrive ID` orders one again; `{PROGRAM} dead close ID` closes one.")


@dead_letter_commands.command("show", short_help="Show a dead letter")
def show_dead(id: IdArgument, json: JsonOption = False) -> None:
    """Show a dead letter, why it failed, and the decision about it."""
    with open_service() as service:
        letter = service.dead_letters.show(service.find_job(id).id)
        tries = service.studio.app.get(letter.job.id).attempt
    say(to_json(letter, indent=2) if json else _format_dead_letter(letter, tries))
    if letter.decision is None and not json:
        warn(
            f"Next: `{PROGRAM} dead redrive {letter.job.id}` orders it again; "
            f"`{PROGRAM} dead close {letter.job.id}` closes it."
        )


def _format_dead_letter(letter: DeadLetter, tries: int) -> str:
    job = letter.job
    known = {
        "id": job.id,
        "user": letter.user_name,
        "prompt": job.prompt,
        "size": job.size,
        "seed": job.seed,
        "cost": format_credits(job.cost),
        "tries": tries,
        "ordered": format_time(job.created_at),
        "buried": None if job.finished_at is None else format_time(job.finished_at),
        "reason": letter.reason,
        "decision": letter.decision or "open",
        "successor": letter.successor,
        "by": letter.by,
        "decided": None if letter.at is None else format_time(letter.at),
        "note": letter.note,
    }
    return format_fields({name: value for name, value in known.items() if value not in (None, "")})


@dead_letter_commands.command("redrive", short_help="Order a dead letter again")
def redrive(
    id: IdArgument, reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the audit.")] = ""
) -> None:
    """Create a new job from a dead letter and reserve its credits again. A dead letter can be redriven once."""
    with open_service() as service:
        old = service.find_job(id).id
        new = service.dead_letters.redrive(old, by=operator(), reason=reason)
        say(f"Ordered {old} again as {new}.")
        warn(service.no_worker_warning() or f"Next: follow it with `{PROGRAM} follow {new}`.")


@dead_letter_commands.command("close", short_help="Close a dead letter")
def close(
    id: IdArgument, note: Annotated[str, typer.Option(metavar="TEXT", help="A note, stored with the decision.")] = ""
) -> None:
    """Close a dead letter. Its credits were refunded when it failed."""
    with open_service() as service:
        old = service.find_job(id).id
        service.dead_letters.close(old, by=operator(), note=note)
    say(f"Closed {old}.")

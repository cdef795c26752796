"""Commands about dead letters: each is reviewed by a person, who drives it again or closes it."""

from typing import Annotated

import typer

from apps.common.ids import SHORTEST
from apps.common.telling import as_json, moment, remark, say, shortened, table, width

from .desk import PROGRAM, operator, staffed
from .review import DeadLetter
from .telling import IdArgument, JsonOption, amount, excerpt, listed

dead = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Jobs that could not be made, and that wait for a person.")


@dead.command("list", short_help="List the dead letters that wait for a decision")
def list_dead(
    every: Annotated[bool, typer.Option("--all", help="Those that are decided, too.")] = False, json: JsonOption = False,
) -> None:
    """List the dead letters that wait for a decision, newest first."""
    with staffed() as desk:
        found = desk.review.every() if every else desk.review.open()
    if json:
        say(as_json(found, indent=2))
        return
    if not found:
        say("There is no dead letter." if every else "Nothing waits for a decision.")
        return
    wide = width()
    ids = [letter.job.id for letter in found] if wide is None else shortened([letter.job.id for letter in found], SHORTEST)
    rows = [(id, letter.user_name, letter.decision or "open", excerpt(letter.job.prompt, wide), letter.reason) for id, letter in zip(ids, found, strict=True)]
    say(table(("id", "user", "decision", "prompt", "reason"), rows, width=wide, cut=["prompt", "reason"]))
    if any(letter.decision is None for letter in found):
        remark(f"Next: `{PROGRAM} dead redrive ID` orders one anew, and `{PROGRAM} dead close ID` puts one away.")


@dead.command("show", short_help="Show a dead letter and what became of it")
def show_dead(id: IdArgument, json: JsonOption = False) -> None:
    """Show a dead letter: why it was buried, and what somebody has decided about it."""
    with staffed() as desk:
        letter = desk.review.show(desk.found(id).id)
        tries = desk.studio.app.get(letter.job.id).attempt
    say(as_json(letter, indent=2) if json else _told(letter, tries))
    if letter.decision is None and not json:
        remark(f"Next: `{PROGRAM} dead redrive {letter.job.id}` orders it anew, and `{PROGRAM} dead close {letter.job.id}` puts it away.")


def _told(letter: DeadLetter, tries: int) -> str:
    job = letter.job
    known = {
        "id": job.id, "user": letter.user_name, "prompt": job.prompt, "size": job.size, "seed": job.seed, "cost": amount(job.cost),
        "tries": tries, "ordered": moment(job.created_at),
        "buried": None if job.finished_at is None else moment(job.finished_at), "reason": letter.reason, "decision": letter.decision or "open",
        "successor": letter.successor, "by": letter.by, "decided": None if letter.at is None else moment(letter.at), "note": letter.note,
    }
    return listed({name: value for name, value in known.items() if value not in (None, "")})


@dead.command("redrive", short_help="Order a dead letter anew")
def redrive(id: IdArgument, reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stands in the audit.")] = "") -> None:
    """Order a dead letter anew: that is a new job, for which its user's credits are reserved again. Each is driven again once."""
    with staffed() as desk:
        old = desk.found(id).id
        new = desk.review.redrive(old, by=operator(), reason=reason)
        say(f"{old} is ordered anew as {new}.")
        remark(desk.unstaffed() or f"Next: watch it with `{PROGRAM} follow {new}`.")


@dead.command("close", short_help="Put a dead letter away")
def close(id: IdArgument, note: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stands with the decision.")] = "") -> None:
    """Put a dead letter away: its user has their credits back already, and nothing more is done."""
    with staffed() as desk:
        old = desk.found(id).id
        desk.review.close(old, by=operator(), note=note)
    say(f"{old} is closed.")

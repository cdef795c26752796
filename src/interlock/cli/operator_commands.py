"""The commands of an operator: redrive, release, explain."""

import json as json_module
from typing import Annotated, Any, Literal

import typer

from ..errors import InterlockError
from . import screen
from .jobs import IdArgument, ReasonOption, sought
from .target import AppOption, ByOption, DatabaseOption, JsonOption, Miscalled, me, opened

EFFECTS: dict[str, Literal["happened", "did_not"]] = {"happened": "happened", "did_not": "did_not"}


def redrive(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The jobs' ids, or unique prefixes of them.")],
    *, app: AppOption = None, database: DatabaseOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what its outside calls and steps answered: they are made again.")] = False,
    by: ByOption = None, reason: ReasonOption = "", json: JsonOption = False,
) -> None:
    """Make a new job of each one that ended without success, and print the new ids.

    The old job stays as it ended. Give -A where you have the app: the payload is then checked by its code of today.
    Exits with 1 if one of them could not be driven again; the others are.

    Example: interlock redrive -A shop:app ID --reason "the bank is back"
    """
    who, made = by or me(), list[dict[str, str]]()
    refused = 0
    with opened(app, database) as chosen:
        for id in ids:
            try:
                old = sought(chosen, id).id
                if old in [one["redrive_of"] for one in made]:
                    continue
                made.append({"id": chosen.redrive(old, by=who, reason=reason, fresh=fresh).id, "redrive_of": old})
            except InterlockError as error:
                screen.complain(str(error))
                refused += 1
    if json:
        screen.as_json(made)
    else:
        for one in made:
            screen.say(one["id"])
    if refused:
        raise typer.Exit(1)


def release(
    id: IdArgument, *, app: AppOption = None, database: DatabaseOption = None,
    reason: Annotated[str, typer.Option(help="Why you know; it stands in the job's history.")],
    by: ByOption = None,
    effect: Annotated[str | None, typer.Option(metavar="|".join(EFFECTS), help="What became of the outside call in doubt.")] = None,
    receipt: Annotated[str | None, typer.Option(metavar="JSON", help="What that call answered, where it happened.")] = None,
    json: JsonOption = False,
) -> None:
    """End a job's hold: it is due at once.

    A job is held where nobody knows whether an outside call happened. Look there, and say what you found: with --effect happened the call is not made again.

    Example: interlock release ID --effect happened --receipt '"ch_17"' --reason "seen at the bank"
    """
    if effect is not None and effect not in EFFECTS:
        raise Miscalled(f"--effect {effect!r} is none: give happened or did_not, or leave it out where nothing is in doubt.")
    if receipt is not None and effect != "happened":
        raise Miscalled("--receipt is what a call answered that happened: give --effect happened with it.")
    with opened(app, database) as chosen:
        id = sought(chosen, id).id
        job = chosen.release(id, by=by or me(), reason=reason, effect=EFFECTS[effect] if effect else None, receipt=_receipt(receipt))
    if json:
        screen.as_json(job)
    else:
        screen.say(f"{job.id} is held no more: it is in {job.state}, and due")


def _receipt(text: str | None) -> Any:
    try:
        return None if text is None else json_module.loads(text)
    except ValueError as error:
        raise Miscalled(f"--receipt is not JSON ({error}): write a text as '\"ch_17\"', an object as '{{\"id\": 17}}'.") from None


def explain(id: IdArgument, *, app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """Say why a job is where it is, and what happens next.

    Example: interlock explain ID
    """
    with opened(app, database) as chosen:
        told = chosen.explain(sought(chosen, id).id)
    if json:
        screen.as_json(told)
        return
    screen.say(told.sentence)
    for reason in told.reasons:
        screen.say(f"- {screen.plain(reason)}")

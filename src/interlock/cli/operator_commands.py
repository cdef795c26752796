"""The commands `redrive`, `release` and `explain`."""

import json as json_module
from typing import Annotated, Any, Literal

import typer

from ..errors import InterlockError
from . import output
from .common_options import AppOption, ByOption, CommandError, DatabaseOption, JsonOption, login_name, open_app
from .job_commands import IdArgument, ReasonOption, find_job

EFFECTS: dict[str, Literal["happened", "did_not"]] = {"happened": "happened", "did_not": "did_not"}


def redrive(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The jobs' ids, or unique prefixes of them.")],
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard saved steps and effects; the new job runs them again.")
    ] = False,
    by: ByOption = None,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Enqueue each failed job again as a new job, and print the new ids.

    The old job does not change. With -A, the current code of your app checks the payload.
    Exits with 1 if a job could not be redriven. The other jobs are still redriven.

    Example: interlock redrive -A shop:app ID --reason "the bank is back"
    """
    who, made = by or login_name(), list[dict[str, str]]()
    refused = 0
    with open_app(app, database) as chosen:
        for id in ids:
            try:
                old = find_job(chosen, id).id
                if old in [one["redrive_of"] for one in made]:
                    continue
                made.append({"id": chosen.redrive(old, by=who, reason=reason, fresh=fresh).id, "redrive_of": old})
            except InterlockError as error:
                output.print_error(str(error))
                refused += 1
    if json:
        output.print_json(made)
    else:
        for one in made:
            output.print_line(one["id"])
    if refused:
        raise typer.Exit(1)


def release(
    id: IdArgument,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    reason: Annotated[str, typer.Option(help="Why you release it; stored in the job's history.")],
    by: ByOption = None,
    effect: Annotated[
        str | None, typer.Option(metavar="|".join(EFFECTS), help="Whether the external call in doubt happened.")
    ] = None,
    receipt: Annotated[
        str | None, typer.Option(metavar="JSON", help="The result of that call, if it happened.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Release a held job: it is ready to run.

    Interlock holds a job if it cannot know whether an external call happened. Check the external system, then say
    what you found. With --effect happened, the call is not made again.

    Example: interlock release ID --effect happened --receipt '"ch_17"' --reason "seen at the bank"
    """
    if effect is not None and effect not in EFFECTS:
        raise CommandError(
            f"--effect {effect!r} is not valid: give happened or did_not, or omit it if no call is in doubt."
        )
    if receipt is not None and effect != "happened":
        raise CommandError("--receipt needs --effect happened: it is the result of a call that happened.")
    with open_app(app, database) as chosen:
        id = find_job(chosen, id).id
        job = chosen.release(
            id,
            by=by or login_name(),
            reason=reason,
            effect=EFFECTS[effect] if effect else None,
            receipt=_receipt(receipt),
        )
    if json:
        output.print_json(job)
    else:
        output.print_line(f"{job.id} released: {job.state}, ready to run")


def _receipt(text: str | None) -> Any:
    try:
        return None if text is None else json_module.loads(text)
    except ValueError as error:
        raise CommandError(
            f"--receipt is not JSON ({error}): write a text as '\"ch_17\"', an object as '{{\"id\": 17}}'."
        ) from None


def explain(
    id: IdArgument, *, app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False
) -> None:
    """Explain why a job is in its state, and what happens next.

    Example: interlock explain ID
    """
    with open_app(app, database) as chosen:
        explanation = chosen.explain(find_job(chosen, id).id)
    if json:
        output.print_json(explanation)
        return
    output.print_line(explanation.sentence)
    for reason in explanation.reasons:
        output.print_line(f"- {output.sanitize(reason)}")

"""The commands `release`, `answer` and `explain`."""

import json as json_module
from typing import Annotated, Any, Literal

import typer

from . import output
from .common_options import (
    AppOption,
    ByOption,
    CommandError,
    DatabaseOption,
    JsonOption,
    login_name,
    open_app,
    require_app,
)
from .job_commands import IdArgument, ReasonOption, find_job

EFFECTS: dict[str, Literal["happened", "did_not"]] = {"happened": "happened", "did_not": "did_not"}


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


def answer(
    id: IdArgument,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The answer, such as true, 7 or '\"yes\"'.")],
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    by: ByOption = None,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Answer the question of a job, for a person who cannot use its link.

    Your app checks the answer and runs the commit function, so this command needs -A.

    Example: interlock answer -A blog:app ID true --reason "the mail was lost"
    """
    given = _answer(value)
    with open_app(app, database, app=require_app(app)) as chosen:
        job = chosen.answer_job(find_job(chosen, id).id, given, by=by or login_name(), reason=reason)
    if json:
        output.print_json(job)
    else:
        output.print_line(f"{job.id} is answered: {job.state}")


def _answer(text: str) -> Any:
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise CommandError(f"The answer is not JSON ({error}): write true, 7, or a text as '\"yes\"'.") from None


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

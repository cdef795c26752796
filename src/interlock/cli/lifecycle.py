"""`interlock lifecycle`: what is declared, as a table and as a diagram, and whether a document still draws the same."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InterlockError, NotFound
from ..lifecycle import BUILTIN, Lifecycle, builtin
from ..machine import Machine
from . import screen
from .target import AppOption, JsonOption, Miscalled, lifecycles, load


def lifecycle(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A lifecycle; without it, all are listed.")] = None,
    *,
    app: AppOption = None,
    check: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Compare with the state diagram in this document; exit with 1 if they differ.")] = None,
    allow: Annotated[list[str] | None, typer.Option(metavar="'A --> B'", help="A difference that is accepted; may be given again.")] = None,
    json: JsonOption = False,
) -> None:
    """List the lifecycles, or print one: its arrows as a table, and the Mermaid diagram.

    standard, state_model and task come with the engine; with -A those of your kinds are there too. --check compares which states are joined, whatever the
    arrows are called, so that a diagram written for people can be held to the code.
    """
    known = _known(app)
    if name is None:
        if check or allow:
            raise Miscalled("--check and --allow need the NAME of the lifecycle to compare with.")
        _list(known, json)
        return
    if name not in known:
        raise NotFound(f"There is no lifecycle {name!r}: there are {', '.join(known)}. Those of your own kinds need -A MODULE:APP.")
    chosen, _ = known[name]
    if check:
        _check(chosen, check, [_pair(each) for each in allow or ()])
    elif json:
        screen.as_json(_facts(chosen))
    else:
        _print(chosen)


def _known(name: str | None) -> dict[str, tuple[Lifecycle, list[str]]]:
    """Lifecycles by name, each with the kinds that follow it."""
    known: dict[str, tuple[Lifecycle, list[str]]] = {each: (builtin(each), []) for each in BUILTIN}
    if name:
        app = load(name)
        known |= {each.name: (each, []) for each in lifecycles(app)}
        for kind in sorted(app.kinds):
            known[app.kinds[kind].declaration.lifecycle.name][1].append(kind)
    return known


def _list(known: dict[str, tuple[Lifecycle, list[str]]], json: bool) -> None:
    if json:
        screen.as_json([_facts(each) | {"kinds": kinds} for each, kinds in known.values()])
        return
    rows = [(each.name, each.initial, len(each.states), len(each.arrows), ", ".join(sorted(each.finals)), ", ".join(kinds)) for each, kinds in known.values()]
    screen.table(("lifecycle", "begins in", "states", "arrows", "ends in", "kinds"), rows)


def _facts(lifecycle: Lifecycle) -> dict[str, object]:
    return {
        "name": lifecycle.name, "initial": lifecycle.initial, "states": lifecycle.states, "finals": sorted(lifecycle.finals),
        "waiting": sorted(lifecycle.waiting), "working": sorted(lifecycle.working), "successes": sorted(lifecycle.successes),
        "arrows": [{"from": arrow.source, "event": arrow.event, "to": arrow.target, "note": arrow.note} for arrow in lifecycle.arrows],
        "mermaid": lifecycle.mermaid(),
    }


def _print(lifecycle: Lifecycle) -> None:
    screen.say(lifecycle.table())
    waits, held, succeeds = (", ".join(sorted(states)) for states in (lifecycle.waiting, lifecycle.working, lifecycle.successes))
    screen.say(f"A job waits in {waits}; is held in {held}; succeeds as {succeeds}.")
    for warning in lifecycle.warnings:
        screen.say(f"note: {warning}")
    screen.say(f"\n```mermaid\n{lifecycle.mermaid()}```")


def _pair(text: str) -> tuple[str, str]:
    source, arrow, target = (part.strip() for part in text.partition("-->"))
    if not (source and arrow and target):
        raise Miscalled(f"--allow {text!r} is no arrow: write it as 'CLAIMED --> FAILED'.")
    return source, target


def _check(lifecycle: Lifecycle, file: Path, allow: list[tuple[str, str]]) -> None:
    try:
        drawn = Machine.load(file, lifecycle.name).pairs()
    except (OSError, UnicodeDecodeError) as error:
        raise InterlockError(f"{file} cannot be read: {error.strerror if isinstance(error, OSError) else 'it is not UTF-8 text'}.") from None
    differences = lifecycle.differences(drawn, allow)
    for sentence in differences:
        screen.say(sentence)
    if differences:
        raise typer.Exit(1)
    screen.say(f"{file} draws {lifecycle.name} as the code does.")

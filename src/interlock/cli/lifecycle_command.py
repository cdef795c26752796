"""`interlock lifecycle`: what is declared, as a table and as a diagram, and whether a document still draws the same."""

import re
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InterlockError, NotFound
from ..lifecycle import BUILTIN, Lifecycle, builtin
from ..machine import Machine
from ..mermaid import NAME
from . import screen
from .table import Column
from .target import AppOption, JsonOption, Miscalled, lifecycles, load


def lifecycle(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A lifecycle; without it all are listed, or the one that FILE.md names checked.")] = None,
    *,
    app: AppOption = None,
    check: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Compare with the state diagram in this document; exit with 1 if they differ.")] = None,
    allow: Annotated[list[str] | None, typer.Option(metavar="'A --> B'", help="A difference that is accepted; may be given again.")] = None,
    json: JsonOption = False,
) -> None:
    """List the lifecycles, or print one: its arrows as a table, and the Mermaid diagram.

    standard, state_model and task come with the engine; with -A those of your kinds are there too. --check compares which states are joined, whatever the
    arrows are called, so that a diagram written for people can be held to the code.

    Example: interlock lifecycle standard --check docs/jobs.md
    """
    known = _known(app)
    if allow and not check:
        raise Miscalled("--allow accepts a difference that --check finds: give --check FILE.md too.")
    name = _named(check, list(known)) if check and name is None else name
    if name is None:
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
    ends, kinds = Column("ends in", "wrap"), Column("kinds", "wrap")
    screen.table(("lifecycle", "begins in", "states", "arrows", ends, kinds), rows)


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


def _named(file: Path, known: list[str]) -> str:
    """The one lifecycle that the document, by its headings or its name, is about."""
    text = _read(file)
    headings = [word for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE) for word in NAME.findall(line)]
    named = [each for each in known if each in (*headings, file.stem)]
    if len(named) != 1:
        said = f"names {', '.join(named)}" if named else f"names none of {', '.join(known)}"
        raise Miscalled(f"--check needs the NAME of the lifecycle to compare with: {file} {said} in its headings or its own name.")
    return named[0]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InterlockError(f"{file} cannot be read: {error.strerror if isinstance(error, OSError) else 'it is not UTF-8 text'}.") from None


def _check(lifecycle: Lifecycle, file: Path, allow: list[tuple[str, str]]) -> None:
    drawn = Machine.from_markdown(lifecycle.name, _read(file), origin=file.name).pairs()
    differences = lifecycle.differences(drawn, allow)
    for sentence in differences:
        screen.say(sentence)
    if differences:
        raise typer.Exit(1)
    allowed = len(lifecycle.differences(drawn))
    screen.say(f"{file} draws {lifecycle.name} as the code does{f', except for {allowed} allowed' if allowed else ''}.")

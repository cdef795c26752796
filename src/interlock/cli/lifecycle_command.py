"""`interlock lifecycle`: lists lifecycles, prints one, or compares one with a document."""

import re
from pathlib import Path
from typing import Annotated

import typer

from ..core.lifecycle import BUILTIN, Lifecycle, builtin
from ..core.machine import Machine
from ..core.mermaid import NAME
from ..errors import InterlockError, NotFound
from . import output
from .common_options import AppOption, CommandError, JsonOption, lifecycles, load
from .text_table import Column


def lifecycle(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A lifecycle. Without it, list all, or check the one that FILE.md names."),
    ] = None,
    *,
    app: AppOption = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md", help="Compare with the state diagram in this document; exit with 1 if they differ."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="'A --> B'", help="An accepted difference; repeatable.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the lifecycles, or print one as a table and a Mermaid diagram.

    standard, state_model and task are built in; -A adds those of your kinds. --check compares the transitions of a
    diagram in your documentation with the code. It ignores their labels.

    Example: interlock lifecycle standard --check docs/jobs.md
    """
    known = _known(app)
    if allow and not check:
        raise CommandError("--allow needs --check FILE.md: it accepts a difference that --check finds.")
    name = _named(check, list(known)) if check and name is None else name
    if name is None:
        _list(known, json)
        return
    if name not in known:
        raise NotFound(
            f"There is no lifecycle {name!r}. Known: {', '.join(known)}. For the lifecycles of your own kinds, give "
            "-A MODULE:APP."
        )
    chosen, _ = known[name]
    if check:
        _check(chosen, check, [_pair(each) for each in allow or ()])
    elif json:
        output.print_json(_facts(chosen))
    else:
        _print(chosen)


def _known(name: str | None) -> dict[str, tuple[Lifecycle, list[str]]]:
    """Return lifecycles by name, each with the kinds that use it."""
    known: dict[str, tuple[Lifecycle, list[str]]] = {each: (builtin(each), []) for each in BUILTIN}
    if name:
        app = load(name)
        known |= {each.name: (each, []) for each in lifecycles(app)}
        for kind in sorted(app.kinds):
            known[app.kinds[kind].spec.lifecycle.name][1].append(kind)
    return known


def _list(known: dict[str, tuple[Lifecycle, list[str]]], json: bool) -> None:
    if json:
        output.print_json([_facts(each) | {"kinds": kinds} for each, kinds in known.values()])
        return
    rows = [
        (each.name, each.initial, len(each.states), len(each.arrows), ", ".join(sorted(each.finals)), ", ".join(kinds))
        for each, kinds in known.values()
    ]
    ends, kinds = Column("ends in", "wrap"), Column("kinds", "wrap")
    output.print_table(("lifecycle", "begins in", "states", "transitions", ends, kinds), rows)


def _facts(lifecycle: Lifecycle) -> dict[str, object]:
    return {
        "name": lifecycle.name,
        "initial": lifecycle.initial,
        "states": lifecycle.states,
        "finals": sorted(lifecycle.finals),
        "waiting": sorted(lifecycle.waiting),
        "working": sorted(lifecycle.working),
        "successes": sorted(lifecycle.successes),
        "arrows": [
            {"from": arrow.source, "event": arrow.event, "to": arrow.target, "note": arrow.note}
            for arrow in lifecycle.arrows
        ],
        "mermaid": lifecycle.mermaid(),
    }


def _print(lifecycle: Lifecycle) -> None:
    output.print_line(lifecycle.table())
    waiting, working, succeeds = (
        ", ".join(sorted(states)) for states in (lifecycle.waiting, lifecycle.working, lifecycle.successes)
    )
    output.print_line(f"A job waits in {waiting}; runs in {working}; succeeds as {succeeds}.")
    for warning in lifecycle.warnings:
        output.print_line(f"note: {warning}")
    output.print_line(f"\n```mermaid\n{lifecycle.mermaid()}```")


def _pair(text: str) -> tuple[str, str]:
    source, arrow, target = (part.strip() for part in text.partition("-->"))
    if not (source and arrow and target):
        raise CommandError(f"--allow {text!r} is not a transition: write it as 'CLAIMED --> FAILED'.")
    return source, target


def _named(file: Path, known: list[str]) -> str:
    """Return the one lifecycle that the document names in its headings or file name."""
    text = _read(file)
    headings = [word for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE) for word in NAME.findall(line)]
    named = [each for each in known if each in (*headings, file.stem)]
    if len(named) != 1:
        said = f"names {', '.join(named)}" if named else f"names none of {', '.join(known)}"
        raise CommandError(f"--check needs the NAME of the lifecycle: {file} {said} in its headings or file name.")
    return named[0]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InterlockError(
            f"{file} cannot be read: {error.strerror if isinstance(error, OSError) else 'it is not UTF-8 text'}."
        ) from None


def _check(lifecycle: Lifecycle, file: Path, allow: list[tuple[str, str]]) -> None:
    documented = Machine.from_markdown(lifecycle.name, _read(file), origin=file.name).pairs()
    differences = lifecycle.differences(documented, allow)
    for sentence in differences:
        output.print_line(sentence)
    if differences:
        raise typer.Exit(1)
    allowed = len(lifecycle.differences(documented))
    output.print_line(f"{file} matches {lifecycle.name}{f', except for {allowed} allowed' if allowed else ''}.")

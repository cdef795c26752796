"""Job ids on the command line: any unique prefix works as an id."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from ..app import App
from ..core.ids import shortest_prefix
from ..errors import NotFound
from . import output
from .common_options import CommandError

CANDIDATES = 5
"""How many jobs an ambiguous prefix names."""


def resolve_id(app: App[Any], text: str) -> str:
    """Return the id with this prefix, or the text itself if there is none. `CommandError` lists several matches."""
    try:
        return str(UUID(text))
    except ValueError:
        found = app.database.store().inspect.find(text, CANDIDATES + 1)
    if len(found) > 1:
        named = _named(app, found[:CANDIDATES])
        more = ", …" if len(found) > CANDIDATES else ""
        raise CommandError(f"{text} is ambiguous. These jobs match: {', '.join(named)}{more}. Use a longer prefix.")
    return found[0] if found else text


def resolve_page_id(app: App[Any], text: str | None, option: str) -> str | None:
    """The full id after which a page begins. The id of a deleted job works, too."""
    if text is None:
        return None
    id = resolve_id(app, text)
    try:
        return str(UUID(id))
    except ValueError:
        raise CommandError(f"{option} {text!r} is not the id of a job. List ids with interlock jobs.") from None


def display_ids(app: App[Any], ids: Iterable[str]) -> Mapping[str, str]:
    """The text to show for each id: its shortest unique prefix in a terminal, the full id in a pipe."""
    listed = list(dict.fromkeys(ids))
    return {id: id for id in listed} if output.terminal_width() is None else _short(app, listed)


def _short(app: App[Any], ids: list[str]) -> dict[str, str]:
    return {
        id: shortest_prefix(id, neighbours) for id, neighbours in app.database.store().inspect.adjacent_ids(ids).items()
    }


def _named(app: App[Any], ids: list[str]) -> list[str]:
    short = _short(app, ids)
    return [f"{short[id]} ({_what(app, id)})" for id in ids]


def _what(app: App[Any], id: str) -> str:
    try:
        job = app.get(id)
    except NotFound:
        return "deleted"
    return f"{job.kind}, {job.state}"

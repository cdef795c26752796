"""Job ids on the command line: any unique prefix works as an id."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from ..app import App
from ..errors import NotFound
from ..ids import shortest_prefix
from . import screen
from .target import Miscalled

CANDIDATES = 5
"""How many jobs an ambiguous prefix names."""


def whole_id(app: App[Any], text: str) -> str:
    """The id with this prefix, or the text itself if no id has it. `Miscalled`, with the candidates, if several do."""
    try:
        return str(UUID(text))
    except ValueError:
        found = app.database.store().find(text, CANDIDATES + 1)
    if len(found) > 1:
        named = _named(app, found[:CANDIDATES])
        more = ", …" if len(found) > CANDIDATES else ""
        raise Miscalled(f"{text} is ambiguous. These jobs match: {', '.join(named)}{more}. Use a longer prefix.")
    return found[0] if found else text


def page_id(app: App[Any], text: str | None, option: str) -> str | None:
    """The full id after which a page begins. The id of a pruned job works, too."""
    if text is None:
        return None
    id = whole_id(app, text)
    try:
        return str(UUID(id))
    except ValueError:
        raise Miscalled(f"{option} {text!r} is not the id of a job. List ids with interlock jobs.") from None


def shown_ids(app: App[Any], ids: Iterable[str]) -> Mapping[str, str]:
    """The text to show for each id: its shortest unique prefix in a terminal, the full id in a pipe."""
    listed = list(dict.fromkeys(ids))
    return {id: id for id in listed} if screen.width() is None else _short(app, listed)


def _short(app: App[Any], ids: list[str]) -> dict[str, str]:
    return {id: shortest_prefix(id, neighbours) for id, neighbours in app.database.store().neighbours(ids).items()}


def _named(app: App[Any], ids: list[str]) -> list[str]:
    short = _short(app, ids)
    return [f"{short[id]} ({_what(app, id)})" for id in ids]


def _what(app: App[Any], id: str) -> str:
    try:
        job = app.get(id)
    except NotFound:
        return "deleted"
    return f"{job.kind}, {job.state}"

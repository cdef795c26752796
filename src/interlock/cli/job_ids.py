"""Job ids as people write and read them: any unique prefix stands for the whole."""

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
    """The id that begins so, or the text itself where no id does. `Miscalled`, with the candidates, if several do."""
    try:
        return str(UUID(text))
    except ValueError:
        found = app.database.store().find(text, CANDIDATES + 1)
    if len(found) > 1:
        named = _named(app, found[:CANDIDATES])
        more = ", …" if len(found) > CANDIDATES else ""
        raise Miscalled(f"{text} begins the ids of several jobs: {', '.join(named)}{more}. Write more of the id.")
    return found[0] if found else text


def page_id(app: App[Any], text: str | None, option: str) -> str | None:
    """The id after which a page begins, whole; a job that is gone still has its place."""
    if text is None:
        return None
    id = whole_id(app, text)
    try:
        return str(UUID(id))
    except ValueError:
        raise Miscalled(f"{option} {text!r} is no job's id: interlock jobs lists them.") from None


def shown_ids(app: App[Any], ids: Iterable[str]) -> Mapping[str, str]:
    """What a terminal shows for each of these ids: as much as tells it from every other. A pipe gets whole ids."""
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

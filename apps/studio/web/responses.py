"""What is answered: JSON in camelCase; and for whatever went wrong, a code for programs and a sentence for people."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, cast

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from apps.common.database import unasked
from apps.common.telling import as_json
from interlock import InterlockError

from .errors import Code, Conflict, NotFound, Refusal, Trouble, Unjudged

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AWAY: tuple[type[Exception], ...] = (InterlockError, DBAPIError, NoConnection)
"""What is raised when the database cannot be asked."""
STATUS: dict[Code, int] = {
    "prompt_empty": 422, "prompt_too_long": 422, "prompt_characters": 422, "prompt_blocked": 422, "prompt_flagged": 422, "params_invalid": 400,
    "credits_insufficient": 402, "user_unknown": 409, "not_redrivable": 409,
}
SEALED = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox"}
"""For what is no page: whatever a browser makes of it, nothing in it runs."""
_log = logging.getLogger("studio")


class Told(Response):
    """A value as JSON, which nobody keeps a copy of on the way."""

    media_type = "application/json"

    def __init__(self, content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status, {**SEALED, "Cache-Control": "no-store", **(headers or {})})

    @override
    def render(self, content: object) -> bytes:
        return as_json(content).encode()


class Wrong(HTTPException):
    """A request that is refused, with nothing changed."""

    def __init__(self, status: int, reason: str, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)
        self.reason = reason


def camel(record: "DataclassInstance") -> dict[str, object]:
    """A record by its fields' names, as JSON has them."""
    return {_camel(field.name): getattr(record, field.name) for field in fields(record)}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


# ---------------------------------------------------------------- what went wrong
def away(error: Exception) -> None:
    """Tell the log why the database cannot be asked. What it says may have statements in it, so nobody else is told."""
    _log.warning("%s", unasked(error, "studio") if isinstance(error, DBAPIError) else f"The database did not answer: {error}")


def _error(status: int, reason: str, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    return Told({"error": sentence, "reason": reason}, status, headers)


def _wrong(_: Request, error: Exception) -> Response:
    refusal = cast(HTTPException, error)
    if isinstance(refusal, Wrong):
        return _error(refusal.status_code, refusal.reason, refusal.detail, refusal.headers)
    own = {404: ("not_found", "There is nothing at this address."), 405: ("method_not_allowed", "This address does not know that method.")}
    return _error(refusal.status_code, *own.get(refusal.status_code, ("refused", refusal.detail)), refusal.headers)


def _refused(_: Request, error: Exception) -> Response:
    refusal = cast(Refusal, error)
    return _error(STATUS[refusal.code], refusal.code, refusal.reason)


def _missing(_: Request, error: Exception) -> Response:
    return _error(404, "not_found", str(error))


def _conflict(_: Request, error: Exception) -> Response:
    return _error(409, "conflict", str(error))


def _unjudged(_: Request, error: Exception) -> Response:
    return _error(503, "moderation_unavailable", str(error))


def _unread(_: Request, error: Exception) -> Response:
    _log.warning("The originals did not answer: %s", error)
    return _error(503, "storage_unavailable", "The picture cannot be read now: try again in a moment.")


def _away(_: Request, error: Exception) -> Response:
    away(error)
    sentence = "The studio's database cannot be asked now. Nothing was changed unless you find it so: look, and try again."
    return _error(503, "database_unavailable", sentence)


def _broken(_: Request, error: Exception) -> Response:
    del error
    return _error(500, "broken", "Something broke in the studio: its log has the reason.")


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Response]] = {
    HTTPException: _wrong, Refusal: _refused, NotFound: _missing, Conflict: _conflict, Unjudged: _unjudged, Trouble: _unread,
    **dict.fromkeys(AWAY, _away), Exception: _broken,
}

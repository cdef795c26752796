"""HTTP responses: JSON in camelCase, and errors with a code for programs and a message for people."""

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

from apps.common.database import database_error_message
from apps.common.formatting import to_json
from interlock import InterlockError

from ..errors import Code, Conflict, ModerationUnavailable, NotFound, Refusal, TemporaryError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

DATABASE_ERRORS: tuple[type[Exception], ...] = (InterlockError, DBAPIError, NoConnection)
"""Exceptions that mean that the database is unreachable or failed."""
STATUS: dict[Code, int] = {
    "prompt_empty": 422,
    "prompt_too_long": 422,
    "prompt_characters": 422,
    "prompt_blocked": 422,
    "prompt_flagged": 422,
    "params_invalid": 400,
    "credits_insufficient": 402,
    "user_unknown": 409,
    "not_redrivable": 409,
}
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
"""Headers of all responses except the page: no browser runs their content."""
_log = logging.getLogger("studio")


class JsonResponse(Response):
    """A JSON response that is never cached."""

    media_type = "application/json"

    def __init__(self, content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status, {**SECURITY_HEADERS, "Cache-Control": "no-store", **(headers or {})})

    @override
    def render(self, content: object) -> bytes:
        return to_json(content).encode()


class ApiError(HTTPException):
    """An error response to a refused request. Nothing was changed."""

    def __init__(self, status: int, reason: str, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)
        self.reason = reason


def to_camel_case(record: "DataclassInstance") -> dict[str, object]:
    """Convert a dataclass to a dict with camelCase names."""
    return {_camel(field.name): getattr(record, field.name) for field in fields(record)}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


# ---------------------------------------------------------------- errors
def log_database_error(error: Exception) -> None:
    """Log a database error. It may contain SQL statements, so it is not sent to the client."""
    _log.warning(
        "%s",
        database_error_message(error, "studio")
        if isinstance(error, DBAPIError)
        else f"The database did not respond: {error}",
    )


def _error(status: int, reason: str, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    return JsonResponse({"error": sentence, "reason": reason}, status, headers)


def _wrong(_: Request, error: Exception) -> Response:
    refusal = cast(HTTPException, error)
    if isinstance(refusal, ApiError):
        return _error(refusal.status_code, refusal.reason, refusal.detail, refusal.headers)
    own = {
        404: ("not_found", "There is no such address."),
        405: ("method_not_allowed", "This address does not support that method."),
    }
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
    _log.warning("The storage of the originals did not respond: %s", error)
    return _error(503, "storage_unavailable", "The picture is unavailable. Try again in a moment.")


def _away(_: Request, error: Exception) -> Response:
    log_database_error(error)
    sentence = "The database is unavailable. Check whether your change was made before you try again."
    return _error(503, "database_unavailable", sentence)


def _broken(_: Request, error: Exception) -> Response:
    del error
    return _error(500, "broken", "Internal error. The studio's log contains the reason.")


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Response]] = {
    HTTPException: _wrong,
    Refusal: _refused,
    NotFound: _missing,
    Conflict: _conflict,
    ModerationUnavailable: _unjudged,
    TemporaryError: _unread,
    **dict.fromkeys(DATABASE_ERRORS, _away),
    Exception: _broken,
}

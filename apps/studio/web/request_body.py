"""Reads request bodies: one small JSON object with known fields."""

import json
from collections.abc import Mapping
from typing import cast

from starlette.requests import ClientDisconnect, Request

from .responses import ApiError

MAX_BODY = 64 * 2**10
"""The largest body, in bytes."""
MAX_DISCARDED = 16 * 2**20
"""Bytes beyond the limit that are read and discarded: most clients read the error only after sending everything."""

MAX_NOTE = 500
"""The longest note, in characters."""


class Fields:
    """The fields of a request body."""

    def __init__(self, given: Mapping[str, object], known: tuple[str, ...]) -> None:
        if strange := [name for name in given if name not in known]:
            raise _invalid_request(f"Unknown field {strange[0][:40]!r}. Known fields: {', '.join(known)}.")
        self._given = given

    def text(self, name: str, default: str | None = None) -> str:
        """A text field. Without a default it is required."""
        value = self._given.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise _invalid_request(f"The field {name} is missing. Send it as a string.")
        if not isinstance(value, str):
            raise _invalid_request(f"The field {name} is not a string.")
        return value

    def line(self, name: str) -> str:
        """An optional text field of one line; empty if it is missing."""
        value = self.text(name, "").strip()
        if len(value) > MAX_NOTE or not value.isprintable():
            raise _invalid_request(f"The field {name} must be one line of at most {MAX_NOTE} printable characters.")
        return value

    def integer(self, name: str) -> int | None:
        """An optional integer field."""
        value = self._given.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise _invalid_request(
            f"The field {name} is not an integer. Send one without quotes and without a decimal point, or leave it out."
        )


async def read(request: Request, *known: str) -> Fields:
    """Read the body of a request, which may contain only these fields. A missing body has no fields."""
    body = await _read_bytes(request)
    if body:
        require_json(request)
    return Fields(_parse_object(body) if body else {}, known)


def require_json(request: Request) -> None:
    """Raise `ApiError` unless the content type of the request is JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "content_type", "Send the request with the content type application/json.")


async def _read_bytes(request: Request) -> bytes:
    """Read the body. It never holds more than the limit in memory."""
    body, length = bytearray(), 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= MAX_BODY:
                body += chunk
            elif length > MAX_BODY + MAX_DISCARDED:
                break
    except ClientDisconnect:
        raise _invalid_request("The request was cut off.") from None
    if length > MAX_BODY:
        raise ApiError(
            413,
            "body_too_large",
            f"The request is larger than {MAX_BODY // 2**10} KiB. Shorten the prompt.",
            {"Connection": "close"},
        )
    return bytes(body)


def _parse_object(body: bytes) -> Mapping[str, object]:
    try:
        given: object = json.loads(body.decode(), object_pairs_hook=_unique_fields)
    except (ValueError, RecursionError):
        raise _invalid_request("The body is not valid JSON. Send one object with each field once.") from None
    if not isinstance(given, dict):
        raise _invalid_request("The body is not a JSON object.")
    return cast("dict[str, object]", given)


def _unique_fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Reject duplicate fields, because programs disagree on which one counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(pairs)
    return found


def _invalid_request(sentence: str) -> ApiError:
    return ApiError(400, "request_invalid", sentence)

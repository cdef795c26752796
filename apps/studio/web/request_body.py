"""What a client sends, read strictly: one small JSON object whose fields are known."""

import json
from collections.abc import Mapping
from typing import cast

from starlette.requests import ClientDisconnect, Request

from .answers import Wrong

LARGEST = 64 * 2**10
"""Bytes of a request."""
DROPPED = 16 * 2**20
"""Bytes beyond that which are read and dropped: most clients hear why they are refused only when they have sent everything."""

LONGEST = 500
"""Characters of a note."""


class Fields:
    """The fields of one request."""

    def __init__(self, given: Mapping[str, object], known: tuple[str, ...]) -> None:
        if strange := [name for name in given if name not in known]:
            raise _invalid(f"There is no field {strange[0][:40]!r}: give {', '.join(known)}.")
        self._given = given

    def text(self, name: str, default: str | None = None) -> str:
        """A field's text; one that must be there has no default."""
        value = self._given.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise _invalid(f"The field {name} is missing: give it as a text.")
        if not isinstance(value, str):
            raise _invalid(f"The field {name} is no text: give it as one.")
        return value

    def line(self, name: str) -> str:
        """A field's text in one line, for people to read; empty if it is not there."""
        value = self.text(name, "").strip()
        if len(value) > LONGEST or not value.isprintable():
            raise _invalid(f"The field {name} cannot be kept: give up to {LONGEST} characters, all of them visible, in one line.")
        return value

    def whole(self, name: str) -> int | None:
        """A field's whole number, if it is there."""
        value = self._given.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise _invalid(f"The field {name} is no whole number: give one, without quotes and without a point, or leave it out.")


async def read(request: Request, *known: str) -> Fields:
    """The fields of a request, of which no others are known than these. Without a body there are none."""
    body = await _bytes(request)
    if body:
        need_json(request)
    return Fields(_object(body) if body else {}, known)


def need_json(request: Request) -> None:
    """`Wrong` unless the request says that its body is JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Wrong(415, "content_type", "Send the request as application/json.")


async def _bytes(request: Request) -> bytes:
    """The body, of which no more is ever held than may be sent."""
    body, length = bytearray(), 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= LARGEST:
                body += chunk
            elif length > LARGEST + DROPPED:
                break
    except ClientDisconnect:
        raise _invalid("The request was cut off.") from None
    if length > LARGEST:
        raise Wrong(413, "body_too_large", f"The request is larger than {LARGEST // 2**10} KiB: no prompt that is taken here is.", {"Connection": "close"})
    return bytes(body)


def _object(body: bytes) -> Mapping[str, object]:
    try:
        given: object = json.loads(body.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise _invalid("The body is no JSON that can be read: send one object with each field once.") from None
    if not isinstance(given, dict):
        raise _invalid("The body is JSON, but no object: send one with the fields.")
    return cast("dict[str, object]", given)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Of a field that is there twice, no two programs take the same one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(pairs)
    return found


def _invalid(sentence: str) -> Wrong:
    return Wrong(400, "request_invalid", sentence)

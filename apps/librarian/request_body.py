"""What a client sends, read strictly: a JSON object, or a form with files (multipart/form-data)."""

import json
from collections.abc import Mapping
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import collapse_rfc2231_value
from typing import cast

MOST_PARTS = 20
LONGEST_HEAD = 4096


class Unreadable(Exception):
    """The body is not what its type says, in one sentence."""


class UnknownType(Exception):
    """The body is of a type that nobody here reads."""


def fields(content_type: str, body: bytes) -> Mapping[str, object]:
    """The fields of a request by name; a file in a form is bytes."""
    head = Message()
    head["Content-Type"] = content_type
    match head.get_content_type() if content_type else "":
        case "application/json":
            return _json(body)
        case "multipart/form-data":
            return _form(head.get_boundary() or "", body)
        case _:
            raise UnknownType("Send the request as application/json, or as multipart/form-data with the .torrent in it.")


def _json(body: bytes) -> Mapping[str, object]:
    try:
        given: object = json.loads(body)
    except (ValueError, RecursionError):
        raise Unreadable("The body is no JSON: send one object with the fields.") from None
    if not isinstance(given, dict):
        raise Unreadable("The body is JSON, but no object: send one with the fields.")
    return cast("dict[str, object]", given)


def _form(boundary: str, body: bytes) -> Mapping[str, object]:
    # Read here, and not by a library: the body is small, and whole in memory already.
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"), MOST_PARTS + 2) if boundary else [b""]
    if len(parts) > MOST_PARTS + 1:
        raise Unreadable(f"The form has more than {MOST_PARTS} parts: send the fields, once each.")
    if not parts or not parts[-1].startswith(b"--"):
        raise Unreadable("The form does not end: it has no boundary, or was cut off.")
    found: dict[str, object] = {}
    for part in parts[:-1]:
        name, value = _part(part)
        if name in found:
            raise Unreadable(f"The form has the field {name!r} twice: send it once.")
        found[name] = value
    return found


def _part(part: bytes) -> tuple[str, str | bytes]:
    head, blank, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    described = BytesHeaderParser().parsebytes(head if blank and len(head) <= LONGEST_HEAD else b"")
    named = described.get_param("name", header="content-disposition")
    if named is None or described.get_content_disposition() != "form-data":
        raise Unreadable('A part of the form has no name: begin each with Content-Disposition: form-data; name="…".')
    name = collapse_rfc2231_value(named)
    if described.get_filename() is not None:
        return name, value
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        raise Unreadable(f"The field {name!r} is no UTF-8 text: send a file with its file name.") from None

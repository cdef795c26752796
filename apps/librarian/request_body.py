"""Parses request bodies strictly: a JSON object, or a form with files (multipart/form-data)."""

import json
from collections.abc import Mapping
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import collapse_rfc2231_value
from typing import cast

MAX_PARTS = 20
MAX_PART_HEADERS = 4096
"""Bytes of the headers of one part."""


class BadBody(Exception):
    """The body does not match its content type."""


class UnsupportedType(Exception):
    """The content type is not supported."""


def parse_fields(content_type: str, body: bytes) -> Mapping[str, object]:
    """The fields of a request by name. A file in a form is bytes."""
    head = Message()
    head["Content-Type"] = content_type
    match head.get_content_type() if content_type else "":
        case "application/json":
            return _json(body)
        case "multipart/form-data":
            return _form(head.get_boundary() or "", body)
        case _:
            raise UnsupportedType(
                "Send the request as application/json, or as multipart/form-data with the .torrent file."
            )


def _json(body: bytes) -> Mapping[str, object]:
    try:
        given: object = json.loads(body)
    except (ValueError, RecursionError):
        raise BadBody("The body is not valid JSON. Send an object with the fields.") from None
    if not isinstance(given, dict):
        raise BadBody("The JSON body is not an object. Send an object with the fields.")
    return cast("dict[str, object]", given)


def _form(boundary: str, body: bytes) -> Mapping[str, object]:
    # No streaming parser is needed: the body is small, and already in memory.
    _, *parts = (
        (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"), MAX_PARTS + 2) if boundary else [b""]
    )
    if len(parts) > MAX_PARTS + 1:
        raise BadBody(f"The form has more than {MAX_PARTS} parts. Send each field once.")
    if not parts or not parts[-1].startswith(b"--"):
        raise BadBody("The form is incomplete: it has no boundary, or was cut off.")
    found: dict[str, object] = {}
    for part in parts[:-1]:
        name, value = _part(part)
        if name in found:
            raise BadBody(f"The form has the field {name!r} twice. Send it once.")
        found[name] = value
    return found


def _part(part: bytes) -> tuple[str, str | bytes]:
    head, blank, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    headers = BytesHeaderParser().parsebytes(head if blank and len(head) <= MAX_PART_HEADERS else b"")
    parameter = headers.get_param("name", header="content-disposition")
    if parameter is None or headers.get_content_disposition() != "form-data":
        raise BadBody('A part of the form has no name. Begin it with Content-Disposition: form-data; name="…".')
    name = collapse_rfc2231_value(parameter)
    if headers.get_filename() is not None:
        return name, value
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        raise BadBody(f"The field {name!r} is not UTF-8 text. Send a file with a file name.") from None

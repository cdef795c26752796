"""Encodes and checks everything that is stored, so that both stores accept the same values.

Payloads, results and receipts are canonical JSON: two values are equal exactly if their texts are.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from operator import itemgetter
from typing import cast

from ..errors import PayloadError

LIMIT = 1_048_576
DEPTH = 100
DIGITS = 4300
"""The most digits of an integer that Python parses by default."""
KEY_LENGTH = 255
EXTERNAL_ID_LENGTH = 500

_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_CONSTANTS = {True: "true", False: "false", None: "null"}
_name = itemgetter(0)
_PLAIN = frozenset({str, int, float, bool, type(None)})
_TOO_LONG = 10**DIGITS
_SHORT = 10**18
# For short texts only: `encode` accepts a megabyte from untrusted callers, and must not run a pattern over it.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f]")


def encode(value: object, *, what: str = "payload", limit: int = LIMIT) -> str:
    """The canonical JSON of a value: sorted keys, no spaces, unescaped UTF-8. `PayloadError` if it cannot round-trip.

    The time is linear in the size of the text.
    """
    if value is None:
        return "null"
    if type(value) is int and -_SHORT < value < _SHORT:  # the encoder itself takes ten times as long
        return str(value)
    try:
        flat = _flat_text(value)
        # By default, the encoder itself refuses longer integers, so that the check is needed only with a higher limit.
        found = None if flat or 0 < sys.get_int_max_str_digits() <= DIGITS else fault(value)
        text = flat or ("" if found else _encoder.encode(value))
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"The {what} cannot be stored: {fault(value) or error}.") from None
    if found or (((not flat and _doubtful(value)) or "\\u0000" in text) and (found := fault(value))):
        raise PayloadError(f"The {what} cannot be stored: {found}.")
    if size > limit:
        raise PayloadError(
            f"The {what} has {size:,} bytes as JSON; the limit is {limit:,}: store the data elsewhere and pass a "
            "reference to it."
        )
    return text


def _flat_text(value: object) -> str | None:
    """The canonical JSON of a dict of texts, short integers, booleans and nulls; None if the value is anything else.

    Most payloads are such a dict, and the encoder takes three times as long.
    """
    if type(value) is not dict:
        return None
    parts: list[str] = []
    entries = cast("dict[str, object]", value).items()
    for name, item in entries if len(entries) == 1 else sorted(entries, key=_name):
        if type(item) is str:
            text = encode_basestring(item)
        elif type(item) is int and -_SHORT < item < _SHORT:
            text = str(item)
        elif type(item) is bool or item is None:
            text = _CONSTANTS[item]
        else:
            return None
        if type(name) is not str:
            return None
        parts.append(f"{encode_basestring(name)}:{text}")
    return f"{{{','.join(parts)}}}"


def _doubtful(value: object) -> bool:
    """Whether the encoder may have missed a fault: a key that is not a string, a custom class, or too many levels."""
    level: Iterable[object] = (value,)
    for _ in range(DEPTH):
        inner: list[object] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                entries = cast("dict[object, object]", item)
                if not {str}.issuperset(map(type, entries)):
                    return True
                children: Iterable[object] = entries.values()
            elif kind is list or kind is tuple:
                children = cast("Iterable[object]", item)
            elif kind in _PLAIN:
                continue
            else:
                return True
            if not _PLAIN.issuperset(map(type, children)):
                inner.extend(child for child in children if type(child) not in _PLAIN)
        if not inner:
            return False
        level = inner
    return True


Place = tuple["Place", str] | None
"""The path to an item in a value: the path to its parent, and the last step."""


def fault(value: object) -> str | None:
    """The first fault of a value and its path; None if the value can be stored."""
    waiting: list[tuple[object, Place, int]] = [(value, None, 0)]
    while waiting:
        item, place, depth = waiting.pop()
        if isinstance(item, (dict, list, tuple)):
            if depth == DEPTH:
                return f"it is nested deeper than {DEPTH} levels (or contains itself); flatten it"
            children, found = _children(cast("dict[object, object] | list[object] | tuple[object, ...]", item))
            waiting.extend((child, (place, step), depth + 1) for child, step in children)
        else:
            found = _scalar_fault(item)
        if found:
            return f"{found}, at {_format_path(place)}"
    return None


def _format_path(place: Place) -> str:
    """The path as text. Long keys are cut, since a key may be as long as the whole payload."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step if len(step) <= KEY_LENGTH else f"{step[:KEY_LENGTH]}…")
    return "".join(reversed(steps)).removeprefix(".") or "its top"


def _children(
    item: dict[object, object] | list[object] | tuple[object, ...],
) -> tuple[list[tuple[object, str]], str | None]:
    if not isinstance(item, dict):
        return [(child, f"[{index}]") for index, child in enumerate(item)], None
    for key in item:
        if not isinstance(key, str):
            return [], f"the key {key!r} is {_article(key)}, but keys in JSON are strings"
        if wrong := _text_fault(key):
            return [], f"a key contains {wrong}"
    return [(child, f".{key}") for key, child in item.items()], None


def _scalar_fault(item: object) -> str | None:
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, str):
        wrong = _text_fault(item)
        return f"a string contains {wrong}" if wrong else None
    if isinstance(item, float):
        return None if math.isfinite(item) else f"{item} is not a JSON number"
    if isinstance(item, int):
        # Compare numbers: Python refuses to convert such a number to digits.
        return f"an integer has more than {DIGITS:,} digits" if not -_TOO_LONG < item < _TOO_LONG else None
    return f"{_article(item)} cannot be stored as JSON"


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair, which is not text"
    return None


def _article(item: object) -> str:
    name = type(item).__name__
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def clean(text: str, limit: int = 10_000) -> str:
    """An error, reason or note as it can be stored: bad characters are replaced, and a long text is cut."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return _UNSTORABLE.sub("\ufffd", text)


def check_key(name: str, key: str) -> str:
    """Return the key. `PayloadError` unless it has 1 to 255 characters that can be stored."""
    _check_text(name, key)
    if len(key) > KEY_LENGTH:
        sizes = f"{len(key):,} characters; the limit is {KEY_LENGTH}"
        raise PayloadError(f"{name} has {sizes}: use a digest of it, such as hashlib.sha256(key.encode()).hexdigest().")
    return key


def check_external_id(id: str) -> str:
    """Return the id of work in an external system. `PayloadError` unless it has 1 to 500 characters that can be
    stored.
    """
    _check_text("An external id", id)
    if len(id) > EXTERNAL_ID_LENGTH:
        sizes = f"{len(id):,} characters; the limit is {EXTERNAL_ID_LENGTH}"
        raise PayloadError(f"An external id has {sizes}: save the long id in a step, and return a shorter one.")
    return id


def check_name(what: str, name: str) -> str:
    """Return the name of a kind or queue, or a part of a tag. `PayloadError` unless it has 1 to 255 printable
    characters without spaces around them.
    """
    _check_text(what, name)
    if len(name) > KEY_LENGTH:
        raise PayloadError(f"{what} has {len(name):,} characters; the limit is {KEY_LENGTH}: choose a shorter one.")
    if name != name.strip() or _CONTROL.search(name):
        raise PayloadError(f"{what} {name!r} has a control character in it or space around it: remove that.")
    return name


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise PayloadError(f"{what} is {_article(text)}: give a string.")
    if not text:
        raise PayloadError(f"{what} is empty: give at least one character, or leave it out.")
    if wrong := _text_fault(text):
        raise PayloadError(f"{what} {text[:40]!r} contains {wrong}: remove it.")


def encode_tags(tags: Mapping[str, str]) -> str:
    """Tags as canonical JSON. `PayloadError` for a name or value that cannot be stored."""
    for name, value in tags.items():
        check_name("A tag's name", name)
        check_name(f"The value of tag {name}", value)
    return encode(dict(tags), what="tags")

"""Prepares values for logs: hides secrets, removes control characters and shortens long values."""

import math
import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, cast

HIDDEN = "***"
MORE = "…"
LIMIT = 2_000
"""The most characters of a text."""
ITEMS = 50
"""The most items of a collection."""
DEPTH = 5
FRAMES = 20
"""The most frames of a traceback; the innermost are kept."""
TRACEBACK = 10_000
_READ = 4
"""Only this many times the limit is searched for secrets; the rest of the text is cut first."""

_NAMES = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "authorization",
    "apikey",
    "cookie",
    "credential",
    "privatekey",
    "accesskey",
    "sessionid",
)
_LINES = "authorization|cookie"
_WORDS = (
    "password|passwd|passphrase|pwd|secret|token|api[_-]?key|credential|private[_-]?key|access[_-]?key|session[_-]?id"
)
_QUOTED = r"""\\+"[^"]*(?:"|$)|[a-z]{0,2}"(?:[^"\\]|\\.)*(?:"|\\?$)|[a-z]{0,2}'(?:[^'\\]|\\.)*(?:'|\\?$)"""
_NAMED = (
    r"""(?i)(?<![a-z0-9])([\w-]{{0,40}}(?:{names})[\w-]{{0,40}}\\?["']?\s{{0,3}}(?:=>|[=:])\s{{0,3}})"""
    r"""(?:{quoted}|{bare})"""
)
_URL = (
    # Up to the last @, because a password that was not escaped may contain / : and @.
    (re.compile(r"(://[^\s/:@]{0,200}):\S*@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"(?i)(https?://)[^\s/:@?#]{1,500}@"), rf"\1{HIDDEN}@"),
)
_RUNS = re.compile(r"(\s+)")
_PAIRS = (
    (re.compile(_NAMED.format(names=_LINES, quoted=_QUOTED, bare=r"[^\n]+")), rf"\1{HIDDEN}"),
    (re.compile(_NAMED.format(names=_WORDS, quoted=_QUOTED, bare=r"[^\s&]+")), rf"\1{HIDDEN}"),
)
_BEARER = ((re.compile(r"(?i)\b(bearer)\s+\S+"), rf"\1 {HIDDEN}"),)
# Most texts are an id, a name or a state. They have no secrets, so the search skips them.
_WORD = re.compile(r"[\w.-]{0,200}")
# Control characters, which a terminal would execute, and characters that change the text direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def secret(name: str) -> bool:
    """Whether a value with this name must be hidden."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return any(one in plain for one in _NAMES)


def text(value: str, *, limit: int = LIMIT, lines: bool = False) -> str:
    """Return a text with its secrets hidden, cut to the limit, and on one line unless `lines` is set."""
    if len(value) <= limit and _WORD.fullmatch(value):
        return value
    if len(value) > limit * _READ:
        # Cut between words. A URL cut in the middle would lose the @ that marks its password.
        value = _whole_words(value[: limit * _READ]) + MORE
    if "://" in value and "@" in value:
        value = "".join(_without_password(run) for run in _RUNS.split(value))
    for pattern, replacement in _patterns_for(value):
        value = pattern.sub(replacement, value)
    value = _CONTROL.sub("\ufffd", value.replace("\r\n", "\n"))
    if not lines:
        value = " ".join(value.split("\n"))
    return value if len(value) <= limit else value[: limit - 1] + MORE


def _whole_words(value: str) -> str:
    """Return a cut text without its last, incomplete word."""
    end = len(value)
    while end and not value[end - 1].isspace():
        end -= 1
    return value[:end]


def _without_password(run: str) -> str:
    """Hide the password in a text without spaces. It searches only before the last @, which keeps the time linear."""
    before, at, after = run.rpartition("@")
    if not at or "://" not in before:
        return run
    before += at
    for pattern, replacement in _URL:
        before = pattern.sub(replacement, before)
    return before + after


def _patterns_for(value: str) -> Iterable[tuple[re.Pattern[str], str]]:
    """Yield the patterns that may match, each with its replacement."""
    if "=" in value or ":" in value:
        yield from _PAIRS
    if "bearer" in value.lower():
        yield from _BEARER


def shown(value: object, depth: int = DEPTH) -> object:
    """Return a value as JSON data, with its secrets hidden and long parts cut."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return MORE if depth == 0 else fields(cast("Mapping[Any, object]", value), depth - 1)
    if isinstance(value, (list, tuple, set, frozenset)):
        return MORE if depth == 0 else _items(cast("Iterable[object]", value), depth - 1)
    return text(str(value))


def fields(given: Mapping[Any, object], depth: int = DEPTH) -> dict[str, object]:
    """Return named values with their secrets hidden. A value with a secret's name is hidden completely.

    A number whose name ends with `tokens` is a count and is shown.
    """
    out: dict[str, object] = {}
    for key, value in given.items():
        if len(out) == ITEMS:
            out[MORE] = f"{len(given) - ITEMS} more"
            break
        name = str(key)
        counted = name.lower().endswith("tokens") and isinstance(value, (int, float))
        out[text(name, limit=100)] = (
            HIDDEN if secret(name) and value is not None and not counted else shown(value, depth)
        )
    return out


def _items(given: Iterable[object], depth: int) -> list[object]:
    out: list[object] = []
    for value in given:
        if len(out) == ITEMS:
            return [*out, MORE]
        out.append(shown(value, depth))
    return out


def error(value: BaseException | str) -> str:
    """Return an error in one line: its type and its message."""
    return text(value if isinstance(value, str) else "".join(traceback.format_exception_only(value)).strip())


def trace(value: BaseException) -> str:
    """Return the traceback of an error, with its causes."""
    return text("".join(traceback.format_exception(value, limit=-FRAMES)).rstrip(), limit=TRACEBACK, lines=True)

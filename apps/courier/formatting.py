"""Turns keys and values into the texts that people read: messages, sizes, durations, reasons for a failure."""

import re
import unicodedata
from typing import Literal, get_args

from .errors import Code
from .texts import EN, RU

Language = Literal["en", "ru"]
MAX_TEXT, MAX_CALLBACK_ANSWER, MAX_LABEL = 4096, 200, 48
"""Telegram's limits for a message and for the answer to a button, and the longest label that a phone shows in full."""
LEASE_LOST = "lease lost"
"""The engine's error for a delivery whose worker stopped sending heartbeats."""
TEXTS: dict[Language, dict[str, str]] = {"en": EN, "ru": RU}
_DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""Text direction marks and the byte order mark."""
_CODE = re.compile(rf"({'|'.join((*get_args(Code), 'temporary', LEASE_LOST))})(?::|$)")


def choose_language(code: str | None) -> Language:
    """Return the language for a client's language code: Russian for Russian, English for any other."""
    return "ru" if (code or "").lower().partition("-")[0] == "ru" else "en"


def render(language: str | None, key: str, **values: object) -> str:
    """Return the text of this key in this language with these values, cut to the length of a message."""
    # Names come from strangers, so they are values and never part of the format string.
    safe = {name: plain_text(value) if isinstance(value, str) else value for name, value in values.items()}
    return truncate(TEXTS[choose_language(language)][key].format(**safe), MAX_TEXT)


def render_failure(language: str | None, last_error: str | None) -> str:
    """Explain to a user why a delivery failed, by the code at the start of its error."""
    key = failure_key(last_error)
    retry_hint = f" {render(language, 'later')}" if key in ("why_temporary", "why_lost", "why_unknown") else ""
    return render(language, key) + retry_hint


def failure_key(last_error: str | None) -> str:
    """Return the key of the text for this error."""
    code = _CODE.match(last_error or "")
    return "why_unknown" if code is None else f"why_{'lost' if code[1] == LEASE_LOST else code[1]}"


# ---------------------------------------------------------------- text from strangers
def plain_text(text: str) -> str:
    """Put a stranger's text on one line, without control characters, direction marks and lone surrogates."""
    sendable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    visible = (("" if each in _DIRECTION_MARKS else " ") if is_control_character(each) else each for each in sendable)
    return " ".join("".join(visible).split())


def is_control_character(character: str) -> bool:
    """Return whether a character is invisible and breaks a line, controls a terminal, or changes the text direction.

    Joiners of letters and emoji do not count.
    """
    return character in _DIRECTION_MARKS or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def telegram_length(text: str) -> int:
    """Return the length of a text as Telegram counts it, in UTF-16 code units."""
    return len(text.encode("utf-16-le", "replace")) // 2


def truncate(text: str, limit: int) -> str:
    """Cut a text to this Telegram length."""
    if telegram_length(text) <= limit:
        return text
    return text.encode("utf-16-le", "replace")[: 2 * (limit - 1)].decode("utf-16-le", "ignore") + "…"


# ---------------------------------------------------------------- sizes and durations
def format_size(number: float, language: str | None) -> str:
    """Format a number of bytes, such as `1.5 MB`."""
    english = choose_language(language) == "en"
    units = ("B", "KB", "MB", "GB") if english else ("Б", "КБ", "МБ", "ГБ")
    place = 0
    while number >= 1024 and place < len(units) - 1:
        number, place = number / 1024, place + 1
    text = f"{number:.1f}".removesuffix(".0") if place else f"{number:.0f}"
    return f"{text if english else text.replace('.', ',')} {units[place]}"


def format_duration(seconds: float, language: str | None) -> str:
    """Format a duration, such as `5 min`."""
    second, minute, hour, day = ("s", "min", "h", "d") if choose_language(language) == "en" else ("с", "мин", "ч", "д")
    for size, unit in ((86400, day), (3600, hour), (60, minute)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} {second}"

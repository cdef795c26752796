"""What is written on the command line, understood: how long, and which tags."""

import re
from collections.abc import Sequence

from .target import Miscalled

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration(text: str | None, option: str) -> float | None:
    """Seconds, from a text such as 90, 90s, 15m, 12h, 7d or 2w."""
    if text is None:
        return None
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise Miscalled(f"{option} {text!r} is no length of time: write a number and a unit, such as 90s, 15m, 12h, 7d or 2w.")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def tags(given: Sequence[str] | None) -> dict[str, str] | None:
    """Tags, from texts such as team=billing."""
    if not given:
        return None
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise Miscalled(f"--tag {text!r} has no value: write it as NAME=VALUE.")
        found[name] = value
    return found

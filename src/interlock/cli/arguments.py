"""What is written on the command line, understood: how long, which tags, which job; and a command line in turn."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..clock import LONGEST
from .target import Miscalled

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
UNITS = "a unit, s m h d or w, as in 90s, 15m, 12h, 7d, 2w"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration(text: str | None, option: str) -> float | None:
    """Seconds, from a text such as 90s, 15m, 12h, 7d or 2w."""
    if text is None:
        return None
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise Miscalled(f"{option} {text!r} is no length of time: write a number and {UNITS}.")
    length = float(found[1]) * _SECONDS[found[2]]
    if length > LONGEST:
        raise Miscalled(f"{option} is longer than a hundred years: give a shorter duration.")
    return length


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


def names(text: str | None, option: str) -> tuple[str, ...]:
    """Names, from a text such as mail,default; none where nothing was given."""
    if text is None:
        return ()
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise Miscalled(f"{option} {text!r} names nothing: write one or more names, with commas between them.")
    return found


def ago(seconds: float) -> str:
    """How long, as people say it."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def last_line(text: str | None) -> str | None:
    """The last line of a traceback, which is the error itself."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else None


def progress(told: tuple[float, float | None, str] | None) -> str | None:
    """The progress that the handler reported, such as 12/40 pages."""
    if told is None:
        return None
    done, total, note = told
    far = f"{done:,.12g}" if total is None else f"{done:,.12g}/{total:,.12g}"
    return f"{far} {note}" if note else far


def program() -> str:
    """How this program is called from where we are."""
    if shutil.which("interlock"):
        return "interlock"
    return shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "interlock" else f"{shlex.quote(sys.executable)} -m interlock"


def written(command: str, app: str | None, options: Sequence[tuple[str, object]]) -> str:
    """A command line that says the same again: what stands in the environment, and what was not given, is left out."""
    given = [("-A", None if app == os.environ.get("INTERLOCK_APP") else app), *options]
    return " ".join([program(), command, *(f"{option} {shlex.quote(str(value))}" for option, value in given if value is not None)])

"""Parses command-line values such as durations and tags, formats ages and progress, and writes command lines."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core.clock import LONGEST
from .common_options import CommandError

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
UNITS = "a unit, s m h d or w, as in 90s, 15m, 12h, 7d, 2w"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def duration(text: str | None, option: str) -> float | None:
    """Parse a duration such as 90s, 15m, 12h, 7d or 2w into seconds."""
    if text is None:
        return None
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"{option} {text!r} is not a duration: write a number and {UNITS}.")
    length = float(found[1]) * _SECONDS[found[2]]
    if length > LONGEST:
        raise CommandError(f"{option} is longer than a hundred years: give a shorter duration.")
    return length


def tags(given: Sequence[str] | None) -> dict[str, str] | None:
    """Parse tags such as team=billing."""
    if not given:
        return None
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise CommandError(f"--tag {text!r} has no value: write it as NAME=VALUE.")
        found[name] = value
    return found


def names(text: str | None, option: str) -> tuple[str, ...]:
    """Parse a list of names such as mail,default."""
    if text is None:
        return ()
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise CommandError(f"{option} {text!r} is empty: write one or more names, separated by commas.")
    return found


def format_age(seconds: float) -> str:
    """Format a duration for people."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def last_line(text: str | None) -> str | None:
    """Return the last line of a traceback, which names the error."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else None


def progress(reported: tuple[float, float | None, str] | None) -> str | None:
    """Format reported progress, such as 12/40 pages."""
    if reported is None:
        return None
    done, total, note = reported
    far = f"{done:,.12g}" if total is None else f"{done:,.12g}/{total:,.12g}"
    return f"{far} {note}" if note else far


def program() -> str:
    """Return the command that runs this program."""
    if shutil.which("interlock"):
        return "interlock"
    return (
        shlex.quote(sys.argv[0])
        if Path(sys.argv[0]).name == "interlock"
        else f"{shlex.quote(sys.executable)} -m interlock"
    )


def command_line(command: str, app: str | None, options: Sequence[tuple[str, object]]) -> str:
    """Build a command line with these options. Omits options that are None or set in the environment."""
    given = [("-A", None if app == os.environ.get("INTERLOCK_APP") else app), *options]
    return " ".join(
        [program(), command, *(f"{option} {shlex.quote(str(value))}" for option, value in given if value is not None)]
    )

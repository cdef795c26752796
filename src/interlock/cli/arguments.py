"""Parses command-line values such as durations and tags, formats ages and progress, and writes command lines."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core.clock import LONGEST
from ..telemetry.endpoint import Address
from .common_options import CommandError

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
UNITS = "a unit, s m h d or w, as in 90s, 15m, 12h, 7d, 2w"
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG])", re.IGNORECASE)
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ADDRESS = re.compile(r"(?:(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+))?:)?([0-9]{1,5})")
LAST_PORT = 65_535
LOOPBACK = "127.0.0.1"
"""The address of this machine, which no other machine can reach."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def is_duration(text: str) -> bool:
    """Return whether the text has the form of a duration."""
    return _AGE.fullmatch(text.strip()) is not None


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


def plain_seconds(text: str, option: str) -> float:
    """Parse a number of seconds such as 25 or 0.5."""
    if _NUMBER.fullmatch(text.strip()) is None or (length := float(text)) > LONGEST:
        raise CommandError(f"{option} {text!r} is not a number of seconds: write it as in 25, 0.5 or 0.")
    return length


def size(text: str | None, option: str) -> int | None:
    """Parse a number of bytes such as 512M or 2G; K, M and G are powers of 1,024."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (number := int(float(found[1]) * _BYTES[found[2].upper()])):
        raise CommandError(f"{option} {text!r} is not a size: write a number and a unit, K, M or G, as in 512M or 2G.")
    return number


def address(text: str | None, option: str) -> Address | None:
    """Parse an address to serve on, such as :8080 or 0.0.0.0:8080. Without a host, it is on this machine only."""
    if text is None:
        return None
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found[3]) > LAST_PORT:
        raise CommandError(
            f"{option} {text!r} is not an address: write :PORT, as in :8080 for this machine only, or HOST:PORT, as in "
            "0.0.0.0:8080 for every address of this machine."
        )
    return Address(found[1] or found[2] or LOOPBACK, int(found[3]))


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

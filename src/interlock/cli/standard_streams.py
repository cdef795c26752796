"""Keeps standard output and standard error of a worker process usable, even if a handler closes them."""

import fcntl
import os
import sys
from typing import TextIO

NAMES = {1: "stdout", 2: "stderr"}


class Streams:
    """Copies of both streams, made when the worker starts, to reopen a stream that a handler closes."""

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}
        for number, name in NAMES.items():
            if _number(getattr(sys, name)) == number:
                self._copies[number] = os.dup(number)

    def log(self) -> TextIO | None:
        """A separate stream to standard error for the log; None if standard error is not a file."""
        copy = self._copies.get(2)
        return None if copy is None else _opened(os.dup(copy), closefd=True)

    def restore(self) -> list[str]:
        """Reopen closed streams and return their names."""
        closed: list[str] = []
        for number, copy in self._copies.items():
            name = NAMES[number]
            if not _is_writable(number):
                os.dup2(copy, number, inheritable=True)
                closed.append(name)
            if _is_closed(getattr(sys, name)):
                setattr(sys, name, _opened(number, closefd=False))
                closed.append(name)
        return sorted(set(closed))

    def flush(self) -> None:
        """Flush both streams, and replace one that cannot be written, since Python would exit with 120 for it."""
        self.restore()
        for name in NAMES.values():
            try:
                getattr(sys, name).flush()
            except (OSError, ValueError, AttributeError):
                setattr(sys, name, None)


def _number(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _is_closed(stream: object) -> bool:
    return stream is None or getattr(stream, "closed", False) is True


def _is_writable(number: int) -> bool:
    """Whether this descriptor is writable. SQLite replaces a closed standard stream with a read-only /dev/null."""
    try:
        return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        return False


def _opened(number: int, *, closefd: bool) -> TextIO:
    return open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=closefd)

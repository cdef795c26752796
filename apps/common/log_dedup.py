"""Log lines that repeat: the first few are written each minute, the rest are counted."""

import logging

from typing_extensions import override

FEW = 5
"""How often the same line is written within `SPAN`."""
SPAN = 60.0
"""Seconds."""
KNOWN = 1000
"""Different lines that are remembered."""
Line = tuple[str, int, str, str]


class Repeats(logging.Filter):
    """Drops lines that repeat too often. The next such line says in `left_out` how many were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[Line, tuple[float, int]] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        line = record.name, record.levelno, record.getMessage(), "" if error is None else repr(error)
        since, times = self._seen.get(line, (record.created, 0))
        record.left_out = ""
        # A clock that was set back also begins a new span.
        if not 0 <= record.created - since < SPAN:
            if times > FEW:
                record.left_out = f" ({times - FEW} more like this were not logged)"
            since, times = record.created, 0
        self._seen[line] = since, times + 1
        if len(self._seen) > KNOWN:
            del self._seen[next(iter(self._seen))]
        return times < FEW

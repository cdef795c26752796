"""Limits repeated log lines: the first few are written each minute, and the others are counted."""

import logging

from typing_extensions import override

MAX_REPEATS = 5
"""How often the same line is written within `WINDOW`."""
WINDOW = 60.0
"""The window in seconds."""
MAX_LINES = 1000
"""How many different lines are remembered."""
Line = tuple[str, int, str, str]


class RepeatedLineFilter(logging.Filter):
    """Drops lines that repeat too often. `suppressed` on the next such line has the number of dropped lines."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[Line, tuple[float, int]] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        line = record.name, record.levelno, record.getMessage(), "" if error is None else repr(error)
        since, times = self._seen.get(line, (record.created, 0))
        record.suppressed = ""
        # A clock that was set back also begins a new span.
        if not 0 <= record.created - since < WINDOW:
            if times > MAX_REPEATS:
                record.suppressed = f" ({times - MAX_REPEATS} more like this were not logged)"
            since, times = record.created, 0
        self._seen[line] = since, times + 1
        if len(self._seen) > MAX_LINES:
            del self._seen[next(iter(self._seen))]
        return times < MAX_REPEATS

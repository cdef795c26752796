"""The signals that stop a worker or a supervisor, and what each of them means."""

import signal
from typing import Literal

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAME_SIGNAL = 0.5
"""Seconds in which a repeated signal counts as one: `timeout` signals a process and then its group."""
Meaning = Literal["drain", "repeated", "exit"]


class StopSignals:
    """Decides what a signal means: the first one drains, a second one ends the process at once."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._first_at = 0.0

    def receive(self, number: int, now: float) -> Meaning:
        """Return what this signal means. One that only repeats the first is to be ignored."""
        if self._first is None:
            self._first, self._first_at = number, now
            return "drain"
        return "repeated" if number == self._first and now - self._first_at < SAME_SIGNAL else "exit"

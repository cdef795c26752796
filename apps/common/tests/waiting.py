"""Waiting for what happens in other processes and threads, where there is no clock to set."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], what: str = "it did not become true", within: float = 60.0) -> T:
    """What `check` answers as soon as that is true. What it waits for is told if it waits in vain."""
    end = time.monotonic() + within
    while not (answer := check()):
        assert time.monotonic() < end, f"Waited {within:g} s in vain: {what}."
        time.sleep(0.02)
    return answer

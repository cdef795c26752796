"""Waits for other processes and threads, which have no clock that a test could set."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(check: Callable[[], T], what: str = "it did not become true", within: float = 60.0) -> T:
    """Call `check` until it returns something true, and return that. Fails with `what` after `within` seconds."""
    end = time.monotonic() + within
    while not (result := check()):
        assert time.monotonic() < end, f"Timed out after {within:g} s: {what}."
        time.sleep(0.02)
    return result

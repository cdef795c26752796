"""The Retry-After header, and the delay before the next try."""

import math
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from interlock import Backoff


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds in a Retry-After header, which may be a number or a date. None if it is missing or malformed."""
    header = headers.get("Retry-After", "")
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
        except (ValueError, OverflowError):
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def retry_delay(
    asked: float | None, backoff: Backoff, attempt: int, draw: Callable[[], float] = random.random
) -> float | None:
    """The longer of the server's Retry-After and our own backoff. None if the server sent none.

    The backoff grows, so that a busy server with a short Retry-After does not use up every try within seconds.
    """
    return None if asked is None else max(asked, backoff.delay(attempt, draw()))

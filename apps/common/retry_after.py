"""How long a server wants to be left alone."""

import math
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from interlock import Backoff


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds for which a server wants to be left alone, if its Retry-After can be read: in seconds, or as a date."""
    said = headers.get("Retry-After", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            moment = parsedate_to_datetime(said)
        except (ValueError, OverflowError):
            return None
        seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def longer(asked: float | None, backoff: Backoff, attempt: int, draw: Callable[[], float] = random.random) -> float | None:
    """As long as a server asked for, and never less than our own pause, which grows: else a busy one would have every try spent within seconds."""
    return None if asked is None else max(asked, backoff.delay(attempt, draw()))

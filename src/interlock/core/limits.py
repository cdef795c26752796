"""Limits of how many jobs run at once and how often jobs start, and which waiting jobs may start within them."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple

from ..errors import UsageError

Scope = Literal["queue", "kind", "key"]
"""What a limit is for: a queue, a kind, or each concurrency key of a kind."""
SCOPES: tuple[Scope, ...] = ("queue", "kind", "key")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*([smhd])\s*")
_MOST = 2**31 - 1
_LONGEST = 366 * 86400.0
"""The longest time of a rate, and between two starts, in seconds."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How often jobs may start: `count` times in this many seconds."""

    count: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Read a rate such as `10/s`, `1000/h` or `5/30s`. `UsageError` if the text is not a rate."""
        found = _RATE.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        count, every = (float(found[1]), float(found[2] or 1) * _UNITS[found[3]]) if found else (0.0, 0.0)
        if not (0 < count <= 1e6 and 1e-3 <= every <= _LONGEST and every / count <= _LONGEST):
            raise UsageError(
                f"The rate is {text!r}: give a number and a time, such as '10/s', '1000/h' or '5/30s', "
                "at most 1000000 and at least one a year."
            )
        return cls(count, every)

    def __str__(self) -> str:
        unit, size = next(((u, s) for u, s in reversed(_UNITS.items()) if self.seconds % s == 0), ("s", 1.0))
        every = self.seconds / size
        return f"{_exact(self.count)}/{'' if every == 1 else _exact(every)}{unit}"

    @property
    def default_burst(self) -> float:
        """What the rate allows in one second, and at least one job."""
        return max(1.0, math.ceil(self.count / self.seconds))

    def after(self, tokens: float, burst: float, elapsed: float) -> float:
        """Return the tokens of a bucket after this many seconds."""
        return min(burst, tokens + max(elapsed, 0.0) * self.count / self.seconds)

    def wait(self, tokens: float) -> float:
        """Return the seconds until the bucket has one token."""
        return max(0.0, (1.0 - tokens) * self.seconds / self.count)


def _exact(number: float) -> str:
    """Return all digits of a number, without an exponent."""
    return str(int(number)) if number == int(number) else f"{Decimal(repr(number)):f}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a queue, a kind, or each concurrency key of a kind. None means no limit.

    `max_running` counts the jobs that run at once, over all workers. `rate` is how often jobs may start, such as
    `"10/s"` or `"1000/h"`. After a quiet time, up to `burst` jobs start at once: by default as many as the rate
    allows in one second, and at least one.
    """

    max_running: int | None = None
    rate: str | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        _check_whole("max_running", self.max_running, 0)
        _check_whole("burst", self.burst, 1)
        if self.rate is not None:
            object.__setattr__(self, "rate", str(Rate.parse(self.rate)))
        elif self.burst is not None:
            raise UsageError("burst is given without a rate: give both, or neither.")

    @property
    def unlimited(self) -> bool:
        return self.max_running is None and self.rate is None

    @property
    def bucket(self) -> tuple[Rate, float] | None:
        """The rate and its burst; None without a rate."""
        if self.rate is None:
            return None
        rate = Rate.parse(self.rate)
        return rate, rate.default_burst if self.burst is None else float(self.burst)


def _check_whole(name: str, value: object, least: int) -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST):
        return
    raise UsageError(f"{name} is {value!r}: give a whole number from {least} on, or None for no limit.")


# ---------------------------------------------------------------- which waiting jobs may start
class Budget(NamedTuple):
    """How many more jobs may start now within one limit."""

    running: float
    """By the number of running jobs. Infinite without such a limit."""
    tokens: float
    """By the rate. Infinite without one."""

    @property
    def free(self) -> float:
        return max(0.0, min(self.running, math.floor(self.tokens) if self.tokens < math.inf else math.inf))


class Candidate(NamedTuple):
    """A waiting job that is due."""

    id: str
    kind: str
    queue: str
    priority: int
    due_at: datetime | str
    suspect: bool
    key: str | None = None

    @property
    def limits(self) -> Iterable[tuple[str, str]]:
        """The names of the limits that count the job."""
        yield "queue", self.queue
        yield "kind", self.kind
        if self.key is not None:
            yield "key", f"{self.kind} {self.key}"
        if self.suspect:
            yield "suspects", ""


def choose(
    candidates: Iterable[Candidate], free: Mapping[tuple[str, str], float], limit: int
) -> tuple[list[Candidate], dict[tuple[str, str], float]]:
    """Return the jobs to start, and what is left of each limit: higher priority first, then the longest due.

    `free` says how many more jobs may start within a limit. Limits that it does not name do not apply.
    """
    left = dict(free)
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: (-each.priority, each.due_at, each.id)):
        if len(chosen) >= limit:
            break
        limits = [name for name in candidate.limits if name in left]
        if all(left[name] >= 1 for name in limits):
            chosen.append(candidate)
            for name in limits:
                left[name] -= 1
    return chosen, left

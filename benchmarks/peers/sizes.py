"""How much a run measures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    rounds: int = 3
    repeats: int = 2
    """How often a sample is repeated at most, if the machine was not quiet."""
    singles: int = 3_000
    """Jobs that are enqueued one by one."""
    drain: int = 40_000
    commits: int = 3_000
    pickups: int = 150
    pickup_rounds: int = 7
    """More rounds than other measures, because the time that an idle core needs to wake up varies between samples."""
    pickups_per_second: float = 25.0
    steady_seconds: int = 10
    steady_per_second: int = 2_000
    backlog: int = 300_000
    history: int = 1_000_000
    sqlite_drain: int = 20_000
    idle_seconds: int = 20
    """Seconds of waiting, and then of counting."""
    batch: int = 1_000
    """Jobs in one call of a bulk enqueue."""


QUICK = Sizes(
    rounds=1,
    repeats=1,
    singles=500,
    drain=10_000,
    commits=1_000,
    pickups=50,
    pickup_rounds=1,
    steady_seconds=4,
    backlog=30_000,
    history=20_000,
    sqlite_drain=5_000,
    idle_seconds=5,
)

"""Repeated log lines do not fill the disk, and the log says how many were suppressed."""

import logging

from apps.common.log_dedup import MAX_LINES, MAX_REPEATS, WINDOW, RepeatedLineFilter


def record(message: str, at: float, error: Exception | None = None) -> logging.LogRecord:
    line = logging.LogRecord(
        "asyncio", logging.ERROR, "", 0, message, (), None if error is None else (type(error), error, None)
    )
    line.created = at
    return line


def test_repeated_line_is_written_a_few_times_a_minute() -> None:
    repeats = RepeatedLineFilter()
    assert sum(repeats.filter(record("no more files", at / 100)) for at in range(5000)) == MAX_REPEATS
    later = record("no more files", WINDOW)
    assert (repeats.filter(later), later.suppressed) == (
        True,
        f" ({5000 - MAX_REPEATS} more like this were not logged)",
    )  # type: ignore[attr-defined]
    assert sum(repeats.filter(record("no more files", WINDOW + 1)) for _ in range(10)) == MAX_REPEATS - 1


def test_different_lines_and_different_errors_are_all_written() -> None:
    repeats = RepeatedLineFilter()
    assert all(repeats.filter(record(f"job {n}", 0.0)) for n in range(3 * MAX_LINES))
    assert all(repeats.filter(record("it broke", 0.0, ValueError(str(n)))) for n in range(20))


def test_setting_the_clock_back_suppresses_no_line() -> None:
    repeats = RepeatedLineFilter()
    for _ in range(100):
        repeats.filter(record("no more files", 1_000_000.0))
    assert repeats.filter(record("no more files", 1.0))

"""The log: a repeated line does not fill the disk, and says how often it was left out."""

import logging

from apps.common.repeats import FEW, KNOWN, SPAN, Repeats


def record(message: str, at: float, error: Exception | None = None) -> logging.LogRecord:
    made = logging.LogRecord("asyncio", logging.ERROR, "", 0, message, (), None if error is None else (type(error), error, None))
    made.created = at
    return made


def test_repeated_line_is_written_a_few_times_a_minute() -> None:
    repeats = Repeats()
    assert sum(repeats.filter(record("no more files", at / 100)) for at in range(5000)) == FEW
    later = record("no more files", SPAN)
    assert (repeats.filter(later), later.left_out) == (True, f" ({5000 - FEW} more like this were not logged)")  # type: ignore[attr-defined]
    assert sum(repeats.filter(record("no more files", SPAN + 1)) for _ in range(10)) == FEW - 1


def test_different_lines_and_different_errors_are_all_written() -> None:
    repeats = Repeats()
    assert all(repeats.filter(record(f"job {n}", 0.0)) for n in range(3 * KNOWN))
    assert all(repeats.filter(record("it broke", 0.0, ValueError(str(n)))) for n in range(20))


def test_clock_that_is_set_back_silences_no_line() -> None:
    repeats = Repeats()
    for _ in range(100):
        repeats.filter(record("no more files", 1_000_000.0))
    assert repeats.filter(record("no more files", 1.0))

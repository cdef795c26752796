"""Cron ticks: they follow local time, fire once each, and missed ticks are made up for as declared."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.core.cron import MOST, CatchUp, Cron, missed
from interlock.errors import UsageError

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

ZONES = ["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo"]
# Days on which clocks in some of these zones go forward or back, and one other day.
DAYS = ["2025-03-08", "2025-03-29", "2025-04-05", "2025-10-04", "2025-10-25", "2025-11-01", "2018-11-03", "2024-02-28"]
EVES = [datetime.fromisoformat(f"{day}T00:00Z") for day in DAYS]
moments = st.builds(
    lambda eve, seconds: eve + timedelta(seconds=seconds),
    st.sampled_from(EVES),
    st.integers(0, 2 * 86400) | st.floats(0, 2 * 86400),
)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.sets(st.integers(low, high), min_size=1, max_size=4).map(
        lambda chosen: ",".join(map(str, sorted(chosen)))
    )
    steps = st.sampled_from(["*", "*", "*/5", f"{low}-{(low + high) // 2}"])
    return numbers | steps


lines = st.tuples(field(0, 59), field(0, 23), st.just("*"), st.just("*"), field(0, 6)).map(" ".join)


def chosen(text: str, low: int, high: int) -> set[int]:
    """Parse a field again, in a simpler way."""
    if "-" in text:
        first, last = text.split("-")
        return set(range(int(first), int(last) + 1))
    if text.startswith("*"):
        return set(range(low, high + 1, int(text[2:] or 1)))
    return {int(number) for number in text.split(",")}


def watched(line: str, tz: str, start: datetime, end: datetime) -> list[datetime]:
    """Return the ticks found by checking every minute of local time, skipping times that a clock shows for the second
    time.
    """
    minute, hour, _, _, weekday = line.split()
    minutes, hours, weekdays = chosen(minute, 0, 59), chosen(hour, 0, 23), chosen(weekday, 0, 6)
    seen: list[datetime] = []
    at = start.replace(second=0, microsecond=0)
    while (at := at + MINUTE) <= end:
        shown = at.astimezone(ZoneInfo(tz))
        if not shown.fold and shown.minute in minutes and shown.hour in hours and shown.isoweekday() % 7 in weekdays:
            seen.append(at)
    return seen


@given(lines, st.sampled_from(ZONES), moments, st.integers(0, 3000))
@example("*/30 * * * *", "Australia/Lord_Howe", datetime(2025, 4, 5, 12, tzinfo=UTC), 300)
@example("* * * * *", "Europe/Berlin", datetime(2025, 10, 26, 0, 40, tzinfo=UTC), 45)
def test_ticks_match_local_time(line: str, tz: str, start: datetime, minutes: int) -> None:
    """The same ticks forwards one by one and backwards from the end."""
    cron, end = Cron(line, tz), start + minutes * MINUTE
    expected = watched(line, tz, start, end)
    assert cron.between(start, end, 10_000) == expected
    assert cron.between(start, end, 3) == expected[-3:]
    walked: list[datetime] = []
    tick = cron.after(start)
    while tick <= end and len(walked) < 50:
        walked.append(tick)
        tick = cron.after(tick)
    assert walked == expected[:50]


@given(lines, st.sampled_from(ZONES), moments)
def test_next_tick_is_the_first_one_after_the_given_time(line: str, tz: str, moment: datetime) -> None:
    cron = Cron(line, tz)
    tick = cron.after(moment)
    assert tick > moment
    assert tick.tzinfo is UTC
    assert cron.between(moment, tick, 5) == [tick]


def test_local_time_that_does_not_exist_is_skipped() -> None:
    """Berlin, 30 March 2025: after 01:59 comes 03:00."""
    night = datetime(2025, 3, 28, 12, tzinfo=UTC)
    half_past_two = Cron("30 2 * * *", "Europe/Berlin").between(night, night + 72 * HOUR, 10)
    assert half_past_two == [datetime(2025, 3, 29, 1, 30, tzinfo=UTC), datetime(2025, 3, 31, 0, 30, tzinfo=UTC)]
    assert Cron("0 3 * * *", "Europe/Berlin").after(datetime(2025, 3, 30, tzinfo=UTC)) == datetime(
        2025, 3, 30, 1, tzinfo=UTC
    )


def test_local_time_that_occurs_twice_ticks_once() -> None:
    """Berlin, 26 October 2025: after 02:59 comes 02:00 again."""
    night = datetime(2025, 10, 25, 12, tzinfo=UTC)
    half_past_two = Cron("30 2 * * *", "Europe/Berlin")
    assert half_past_two.between(night, night + 24 * HOUR, 10) == [datetime(2025, 10, 26, 0, 30, tzinfo=UTC)]
    assert half_past_two.after(datetime(2025, 10, 26, 0, 30, tzinfo=UTC)) == datetime(2025, 10, 27, 1, 30, tzinfo=UTC)
    assert half_past_two.after(datetime(2025, 10, 26, 1, 10, tzinfo=UTC)) == datetime(2025, 10, 27, 1, 30, tzinfo=UTC)


def test_nightly_schedule_keeps_its_local_hour_all_year() -> None:
    ticks = Cron("0 3 * * *", "Europe/Berlin").between(
        datetime(2025, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 12, tzinfo=UTC), 1000
    )
    assert len(ticks) == 365
    assert {(tick.astimezone(ZoneInfo("Europe/Berlin")).hour, tick.hour) for tick in ticks} == {(3, 2), (3, 1)}


def test_very_rare_tick_is_found() -> None:
    assert Cron("0 0 * 2 MON#5", "UTC").after(datetime(2073, 1, 1, tzinfo=UTC)) == datetime(2112, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "tz", "said"),
    [
        ("0 3 * *", "UTC", "give five fields"),
        ("0 0 3 * * *", "UTC", "give five fields"),
        ("@daily", "UTC", "give five fields"),
        ("", "UTC", "give five fields"),
        ("61 3 * * *", "UTC", "cannot be read .Bad minute"),
        ("0 24 * * *", "UTC", "cannot be read .Bad hour"),
        ("*/0 3 * * *", "UTC", "cannot be read"),
        ("5-1 3 * * *", "UTC", "cannot be read"),
        ("0 3 30 2 *", "UTC", "cannot be read .Bad day"),
        (f"*/{'9' * 5000} 3 * * *", "UTC", "cannot be read"),
        ("0 0 */31 * MON#3", "UTC", "never ticks in UTC"),
        ("30 2 * 3 0L", "Europe/Berlin", "never ticks in Europe/Berlin"),
        ("0 3 * * *", "Mars/Olympus", "does not know"),
        ("0 3 * * *", "../etc/passwd", "does not know"),
        ("0 3 * * *", "Europe", "does not know"),
        ("0 3 * * *", "", "does not know"),
    ],
)
def test_invalid_schedule_is_refused_with_a_message(line: str, tz: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Cron(line, tz)


@given(st.text("0123456789*/,-L#W MON", max_size=30).map(lambda text: f"{text} * * * *"))
def test_any_text_is_accepted_or_refused(line: str) -> None:
    with suppress(UsageError):
        Cron(line, "Europe/Berlin")


def test_time_without_a_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="has no time zone"):
        Cron("0 3 * * *", "UTC").after(datetime(2025, 1, 1))  # noqa: DTZ001  that is what is refused


# ---------------------------------------------------------------- missed ticks
HOURLY = Cron("0 * * * *", "UTC")
NOON = datetime(2025, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("catch_up", "hours"),
    [("last", [12]), ("none", [12]), ("all", [8, 9, 10, 11, 12])],
)
def test_due_tick_fires_and_older_ticks_follow_catch_up(catch_up: CatchUp, hours: list[int]) -> None:
    assert [tick.hour for tick in missed(HOURLY, NOON - 5 * HOUR, NOON + 0.5 * MINUTE, catch_up, 60)] == hours


@pytest.mark.parametrize(("catch_up", "hours"), [("last", [12]), ("none", []), ("all", [11, 12])])
def test_late_tick_fires_only_with_catch_up(catch_up: CatchUp, hours: list[int]) -> None:
    assert [tick.hour for tick in missed(HOURLY, NOON - 2 * HOUR, NOON + 2 * MINUTE, catch_up, 60)] == hours


@pytest.mark.parametrize("catch_up", ["last", "none", "all"])
def test_tick_fires_once(catch_up: CatchUp) -> None:
    """The last tick has already fired."""
    assert missed(HOURLY, NOON, NOON + 0.5 * MINUTE, catch_up, 60) == []
    assert missed(HOURLY, NOON, NOON - HOUR, catch_up, 60) == []


def test_at_most_a_thousand_ticks_are_made_up_for() -> None:
    every_minute = Cron("* * * * *", "UTC")
    ticks = missed(every_minute, NOON - 3000 * MINUTE, NOON, "all", 60)
    assert (len(ticks), ticks[0], ticks[-1]) == (MOST, NOON - (MOST - 1) * MINUTE, NOON)


@given(lines, st.sampled_from(ZONES), moments, st.integers(0, 3000), st.integers(0, 7200))
def test_catch_up_none_and_last_are_subsets_of_all(line: str, tz: str, last: datetime, minutes: int, late: int) -> None:
    """`last` fires exactly the latest tick, whether it is on time or not, and `none` fires it only if it is."""
    cron, now = Cron(line, tz), last + minutes * MINUTE
    none, newest, everything = (missed(cron, last, now, catch_up, late) for catch_up in ("none", "last", "all"))
    on_time = [tick for tick in everything if tick > now - timedelta(seconds=late)]
    assert none == on_time[-1:]
    assert newest == everything[-1:]


@given(lines, st.sampled_from(ZONES), moments, st.lists(st.integers(1, 90_000), min_size=1, max_size=6))
@example("* * * * *", "UTC", NOON, [59, 61, 3600])
def test_catch_up_last_creates_one_job_after_each_absence_of_workers(
    line: str, tz: str, last: datetime, absences: list[int]
) -> None:
    """The absence may be of any length, and the newest tick on either side of the minute that counts as on time."""
    cron, done_until, now = Cron(line, tz), last, last
    for seconds in absences:
        now += timedelta(seconds=seconds)
        ticks = cron.between(done_until, now, 1)
        assert missed(cron, done_until, now, "last", 60) == ticks
        done_until = ticks[-1] if ticks else done_until
        assert missed(cron, done_until, now, "last", 60) == []

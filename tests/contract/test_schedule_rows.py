"""schedule and ticked: stored schedules and their last tick."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from interlock.store.contract import Store
from interlock.store.types import ScheduleFacts
from tests.kit import EPOCH, PostgresRaw, Raw, SettableClock

NIGHTLY = ScheduleFacts("nightly", "mail", "0 3 * * *", "Europe/Berlin", "last", '{"to":"Ü"}')


def kept(raw: Raw, name: str = "nightly") -> ScheduleFacts:
    payload = "payload::text" if isinstance(raw, PostgresRaw) else "payload"
    (row,) = raw(f"SELECT name, kind, cron, tz, catch_up, {payload} FROM {{schedules}} WHERE name = :name", name=name)
    return ScheduleFacts(*row)


def test_new_schedule_has_no_past_ticks(store: Store, raw: Raw, clock: SettableClock) -> None:
    """Its last tick is the time at which it is saved."""
    clock.advance(1.5)
    assert store.schedules.save(NIGHTLY) == EPOCH + timedelta(seconds=1.5)
    assert kept(raw) == NIGHTLY


def test_known_schedule_continues_from_its_last_tick(store: Store, other: Store, clock: SettableClock) -> None:
    """In any process, however much later."""
    first = store.schedules.save(NIGHTLY)
    clock.advance(1000)
    assert other.schedules.save(NIGHTLY) == first
    other.schedules.mark_tick("nightly", EPOCH + timedelta(seconds=500))
    assert store.schedules.save(NIGHTLY) == EPOCH + timedelta(seconds=500)


@pytest.mark.parametrize(
    "change", [{"kind": "chore"}, {"cron": "0 4 * * *"}, {"tz": "UTC"}, {"catch_up": "all"}, {"payload": "{}"}]
)
def test_changed_schedule_keeps_its_last_tick(
    store: Store, raw: Raw, clock: SettableClock, change: dict[str, str]
) -> None:
    """Everything but the name may change."""
    store.schedules.save(NIGHTLY)
    store.schedules.save(replace(NIGHTLY, name="another"))
    clock.advance(1000)
    changed = replace(NIGHTLY, **change)
    assert store.schedules.save(changed) == EPOCH
    assert kept(raw) == changed
    assert kept(raw, "another") == replace(NIGHTLY, name="another")


def test_unchanged_schedule_writes_nothing(store: Store, raw: Raw) -> None:
    """It is saved at every heartbeat, and a write would wake listeners: on SQLite it does not wait for a writer, on
    PostgreSQL it writes no row.
    """
    store.schedules.save(NIGHTLY)
    if isinstance(raw, PostgresRaw):
        before = raw("SELECT xmin::text, ctid::text FROM {schedules}")
        store.schedules.save(NIGHTLY)
        assert raw("SELECT xmin::text, ctid::text FROM {schedules}") == before
    else:
        with raw.transaction():
            assert store.schedules.save(NIGHTLY) == EPOCH


def test_paused_schedule_has_no_tick(store: Store, raw: Raw) -> None:
    """A changed declaration is stored anyway; after the pause it continues from its last tick."""
    store.schedules.save(NIGHTLY)
    raw("UPDATE {schedules} SET paused_at = last_tick")
    assert store.schedules.save(replace(NIGHTLY, cron="0 4 * * *")) is None
    assert kept(raw).cron == "0 4 * * *"
    raw("UPDATE {schedules} SET paused_at = NULL")
    assert store.schedules.save(NIGHTLY) == EPOCH


def test_last_tick_never_goes_back(store: Store) -> None:
    """If two maintenance processes mark ticks in different orders, the later tick stays; time zones are compared
    correctly.
    """
    store.schedules.save(NIGHTLY)
    later = datetime(2026, 1, 2, 5, 0, 0, 250, tzinfo=timezone(timedelta(hours=2)))
    store.schedules.mark_tick("nightly", later)
    store.schedules.mark_tick("nightly", EPOCH + timedelta(days=1))
    assert store.schedules.save(NIGHTLY) == later == datetime(2026, 1, 2, 3, 0, 0, 250, tzinfo=UTC)


def test_tick_of_an_unknown_schedule_is_ignored(store: Store, raw: Raw) -> None:
    store.schedules.mark_tick("nightly", EPOCH)
    assert raw("SELECT count(*) FROM {schedules}") == [(0,)]

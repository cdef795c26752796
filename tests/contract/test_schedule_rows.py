"""Stored schedules: what the code declares, what is changed at run time, and the last tick."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from interlock.store.contract import Store
from interlock.store.schedule_types import ScheduleChange, ScheduleFacts, StoredSchedule
from tests.contract.stacks import POSTGRES, SQLITE, Stack
from tests.kit import EPOCH, Place, PostgresRaw, Raw, SettableClock

NIGHTLY = ScheduleFacts("nightly", "mail", "0 3 * * *", "Europe/Berlin", "last", '{"to":"Ü"}', '{"priority": 7}')
SYNC_STACKS = [
    pytest.param(stack, id=f"{stack.database}: {stack.name}")
    for stack in (*SQLITE, *POSTGRES)
    if "sync" not in stack.name.lower()
]
ANN: dict[str, Any] = {"by": "ann", "reason": "asked"}
CHANGES = [
    {"kind": "chore"},
    {"cron": "0 4 * * *"},
    {"tz": "UTC"},
    {"catch_up": "all"},
    {"payload": '{"n":1e400,"big":123456789012345678901234567890}'},
    {"options": "{}"},
]


def get(store: Store, name: str = "nightly") -> StoredSchedule:
    found = store.schedules.get(name)
    assert found is not None
    return found


def create(store: Store, facts: ScheduleFacts = NIGHTLY) -> bool:
    return store.schedules.create(facts, **ANN, detail={"cron": facts.cron})


def change(store: Store, **values: Any) -> bool:
    return store.schedules.change("nightly", ScheduleChange(**values), by="bob", reason=None, detail=values)


def mark(store: Store, tick: datetime, name: str = "nightly") -> None:
    with store.transaction() as tx:
        store.schedules.mark_tick(name, tick, conn=tx)


# ---------------------------------------------------------------- declared
def test_new_schedule_has_no_past_ticks(store: Store, clock: SettableClock) -> None:
    """It starts when it is stored."""
    clock.advance(1.5)
    store.schedules.declare(NIGHTLY)
    now = EPOCH + timedelta(seconds=1.5)
    assert get(store) == StoredSchedule(NIGHTLY, True, None, now, None, None, None, now, None)
    assert get(store).done_until == now


def test_known_schedule_continues_from_its_last_tick(store: Store, other: Store, clock: SettableClock) -> None:
    """In any process, however much later."""
    store.schedules.declare(NIGHTLY)
    clock.advance(1000)
    other.schedules.declare(NIGHTLY)
    assert get(store).done_until == EPOCH
    mark(other, EPOCH + timedelta(seconds=500))
    store.schedules.declare(NIGHTLY)
    assert get(store).done_until == EPOCH + timedelta(seconds=500)


@pytest.mark.parametrize("values", CHANGES, ids=str)
def test_changed_declaration_keeps_the_last_tick(store: Store, clock: SettableClock, values: dict[str, Any]) -> None:
    """A deploy is an absence of workers too, so its ticks are not lost. Everything but the name may change."""
    store.schedules.declare(NIGHTLY)
    store.schedules.declare(replace(NIGHTLY, name="another"))
    clock.advance(1000)
    changed = replace(NIGHTLY, **values)
    store.schedules.declare(changed)
    assert (get(store).facts, get(store).done_until, get(store).changed_at) == (changed, EPOCH, clock.now())
    assert get(store, "another").facts == replace(NIGHTLY, name="another")


def test_unchanged_schedule_writes_nothing(store: Store, raw: Raw) -> None:
    """It is declared at every tick, and a write would wake listeners: on SQLite it does not wait for a writer, on
    PostgreSQL it writes no row.
    """
    store.schedules.declare(NIGHTLY)
    if isinstance(raw, PostgresRaw):
        before = raw("SELECT xmin::text, ctid::text FROM {schedules}")
        store.schedules.declare(NIGHTLY)
        assert raw("SELECT xmin::text, ctid::text FROM {schedules}") == before
    else:
        with raw.transaction():
            store.schedules.declare(NIGHTLY)


# ---------------------------------------------------------------- at run time
def test_created_schedule_starts_now(store: Store, clock: SettableClock) -> None:
    clock.advance(60)
    assert create(store)
    assert get(store) == StoredSchedule(NIGHTLY, False, "ann", clock.now(), None, None, None, clock.now(), None)
    (row,) = store.schedules.times()
    assert (row.name, row.declared, row.paused, row.done_until) == ("nightly", False, False, clock.now())


def test_second_schedule_of_a_name_is_not_stored(store: Store) -> None:
    assert create(store)
    assert not create(store, replace(NIGHTLY, cron="0 5 * * *"))
    assert get(store).facts == NIGHTLY
    assert [one.event for one in store.limits.operations()] == ["create"]


@pytest.mark.parametrize("values", CHANGES, ids=str)
@pytest.mark.parametrize("declared", [True, False])
def test_change_at_run_time_outlasts_declarations_until_reset(
    store: Store, clock: SettableClock, values: dict[str, Any], declared: bool
) -> None:
    """Also if the code declares the schedule only after the change. The reset restores every character."""
    if declared:
        store.schedules.declare(NIGHTLY)
    else:
        create(store)
    clock.advance(60)
    assert change(store, **values)
    changed, since = replace(NIGHTLY, **values), clock.now()
    store.schedules.declare(replace(NIGHTLY, catch_up="none"))
    store.schedules.declare(NIGHTLY)
    seen = get(store)
    assert (seen.facts, seen.changed_by, seen.changed_at, seen.declared) == (changed, "bob", since, True)
    assert store.schedules.reset("nightly", **ANN)
    assert (get(store).facts, get(store).changed_by) == (NIGHTLY, None)
    assert not store.schedules.reset("nightly", **ANN)


def test_reset_restores_a_payload_character_by_character(store: Store) -> None:
    """A database that parses it may write numbers in another way."""
    odd = replace(NIGHTLY, payload='{"n": 1.50, "big": 123456789012345678901234567890, "s": "\\u00dc"}')
    store.schedules.declare(odd)
    change(store, payload="{}")
    store.schedules.reset("nightly", **ANN)
    assert get(store).facts == odd


@pytest.mark.parametrize(
    ("values", "starts"),
    [({"cron": "0 4 * * *"}, True), ({"tz": "UTC"}, True), ({"cron": "0 3 * * *"}, False), ({"payload": "{}"}, False)],
    ids=str,
)
def test_new_cron_line_or_time_zone_starts_from_now(
    store: Store, clock: SettableClock, values: dict[str, Any], starts: bool
) -> None:
    """Those of a change, and those of a reset."""
    store.schedules.declare(NIGHTLY)
    for verb in (lambda: change(store, **values), lambda: store.schedules.reset("nightly", **ANN)):
        before = get(store).done_until
        clock.advance(60)
        assert verb()
        assert get(store).done_until == (clock.now() if starts else before)


def test_pause_is_stored_with_its_actor_and_ends_now(store: Store, clock: SettableClock) -> None:
    """Ticks of the pause are not caught up: the schedule starts again at its end."""
    create(store)
    clock.advance(60)
    assert store.schedules.pause("nightly", **ANN)
    assert not store.schedules.pause("nightly", by="eve", reason=None)
    seen = get(store)
    assert (seen.paused_at, seen.paused_by, seen.pause_reason) == (clock.now(), "ann", "asked")
    assert [row.paused for row in store.schedules.times()] == [True]
    clock.advance(60)
    assert store.schedules.resume("nightly", **ANN)
    assert not store.schedules.resume("nightly", **ANN)
    seen = get(store)
    assert (seen.paused_at, seen.paused_by, seen.pause_reason) == (None, None, None)
    assert seen.done_until == clock.now()


def test_each_change_adds_an_operation(store: Store, clock: SettableClock) -> None:
    """With the time of the change; a change that changes nothing adds none."""
    create(store)
    verbs: list[tuple[str, Callable[[], bool]]] = [
        ("change", lambda: change(store, cron="1 * * * *")),
        ("pause", lambda: store.schedules.pause("nightly", **ANN)),
        ("resume", lambda: store.schedules.resume("nightly", **ANN)),
        ("reset", lambda: store.schedules.reset("nightly", **ANN)),
        ("delete", lambda: store.schedules.delete("nightly", **ANN, detail={"cron": "1 * * * *"})),
    ]
    for event, verb in verbs:
        clock.advance(1)
        if event == "reset":
            store.schedules.declare(NIGHTLY)
        assert verb()
        newest = store.limits.operations()[0]
        assert (newest.event, newest.scope, newest.name, newest.at) == (event, "schedule", "nightly", clock.now())
    assert store.schedules.all() == []
    for _, verb in verbs:
        assert not verb()
    assert len(store.limits.operations()) == 6
    assert store.limits.operations()[0].detail == {"cron": "1 * * * *"}


def test_schedules_are_listed_by_name(store: Store) -> None:
    """Byte by byte, on both stores."""
    for name in ("b", "a", "B", "ä"):
        create(store, replace(NIGHTLY, name=name))
    assert [one.facts.name for one in store.schedules.all()] == ["B", "a", "b", "ä"]
    assert [row.name for row in store.schedules.times()] == ["B", "a", "b", "ä"]


# ---------------------------------------------------------------- ticks
def test_last_tick_never_goes_back(store: Store) -> None:
    """If two maintenance processes mark ticks in different orders, the later tick stays; time zones are compared
    correctly.
    """
    store.schedules.declare(NIGHTLY)
    later = datetime(2026, 1, 2, 5, 0, 0, 250, tzinfo=timezone(timedelta(hours=2)))
    mark(store, later)
    mark(store, EPOCH + timedelta(days=1))
    assert get(store).last_tick == later == datetime(2026, 1, 2, 3, 0, 0, 250, tzinfo=UTC)


def test_tick_of_an_unknown_schedule_is_ignored(store: Store) -> None:
    mark(store, EPOCH)
    with store.transaction() as tx:
        assert store.schedules.lock("nightly", conn=tx) is None
    assert store.schedules.all() == []


def test_rolled_back_tick_is_not_marked(store: Store) -> None:
    """The lock, the job and the mark belong to one transaction."""
    create(store)
    with pytest.raises(ValueError, match="stop"), store.transaction() as tx:
        assert store.schedules.lock("nightly", conn=tx) == get(store)
        store.schedules.mark_tick("nightly", EPOCH + timedelta(hours=1), conn=tx)
        store.schedules.record_run("nightly", by="ann", reason=None, detail={}, conn=tx)
        raise ValueError("stop")
    assert get(store).last_tick is None
    assert [one.event for one in store.limits.operations()] == ["create"]


@pytest.mark.parametrize("stack", SYNC_STACKS)
@pytest.mark.parametrize("commit", [True, False])
def test_tick_belongs_to_the_transaction_of_the_app(stack: Stack, commit: bool, place: Place) -> None:
    """In the library that the app uses: the row is read, and the tick and an operation are stored with its commit."""
    if not place.url.startswith(stack.database):
        pytest.skip("a library of the other database")
    store = place.open(real_time=True)
    store.registry.migrate([], [])
    create(store)
    before, tick = get(store), datetime(2040, 1, 1, tzinfo=UTC)
    seen: list[StoredSchedule | None] = []

    def work(conn: Any) -> None:
        seen.append(store.schedules.lock("nightly", conn=conn))
        store.schedules.mark_tick("nightly", tick, conn=conn)
        store.schedules.record_run("nightly", by="ann", reason=None, detail={"job": "1"}, conn=conn)

    async def never(_: Any) -> None: ...

    asyncio.run(stack.run(place.url, work, never, commit))
    assert seen == [before]
    assert get(store).last_tick == (tick if commit else None)
    assert [one.event for one in store.limits.operations()] == (["run", "create"] if commit else ["create"])

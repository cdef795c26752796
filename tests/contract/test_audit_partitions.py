"""A partitioned audit on PostgreSQL: the entries of a month are in one partition, and protected like the whole."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from interlock.errors import Unavailable, UsageError
from interlock.operate.verify import verify
from interlock.store import OpenStore
from interlock.store.postgres.pool import should_retry
from tests.contract.kit import CONTENTS, claim, claimed, finish, many
from tests.contract.partition_kit import (
    APRIL,
    DEFAULT,
    FEBRUARY,
    JANUARY,
    MARCH,
    end_all,
    enqueue_at,
    months,
    partition_of,
    place,
    raw,
    set_clock,
    store,
)
from tests.kit import Place, Raw, sqlite_place

__all__ = ["place", "raw", "store"]


# ---------------------------------------------------------------- where entries are stored
def test_entries_are_stored_in_the_partition_of_their_jobs_month(store: OpenStore, raw: Raw) -> None:
    """The month in which the job was created counts, not that of the entry. Other jobs are in the default partition."""
    ids = {
        JANUARY: enqueue_at(store, 2026, 1, 31),
        FEBRUARY: enqueue_at(store, 2026, 2, 1),
        MARCH: enqueue_at(store, 2026, 3, 31),
        DEFAULT: enqueue_at(store, 2026, 4, 1),
    }
    long_ago, far_away = enqueue_at(store, 1999, 12, 31), enqueue_at(store, 2999, 1, 1)
    end_all(store)
    assert months(raw) == [JANUARY, FEBRUARY, MARCH]
    for name, id in (*ids.items(), (JANUARY, long_ago), (DEFAULT, far_away)):
        assert partition_of(raw, id) == {name}
        assert [entry.event for entry in store.inspect.history(id)] == ["enqueue", "claim", "succeed"]
    assert verify(store).ok


def test_history_from_before_becomes_one_partition(place: Place) -> None:
    """Every entry stays as it was; jobs with an id of a later month move to the default partition."""
    store, raw = place.open_with(CONTENTS), place.raw
    old, later = enqueue_at(store, 2025, 12, 1), enqueue_at(store, 2026, 2, 1)
    end_all(store)
    before = raw.dump()
    assert store.retention.partition_audit()
    assert raw.dump() == before
    assert not store.retention.partition_audit()
    assert (partition_of(raw, old), partition_of(raw, later)) == ({JANUARY}, {DEFAULT})
    # A month whose jobs are in the default partition already stays there.
    assert months(raw) == [JANUARY, MARCH]
    assert partition_of(raw, enqueue_at(store, 2026, 2, 2)) == {DEFAULT}
    assert verify(store).ok


def test_jobs_are_stored_while_the_audit_is_being_partitioned(place: Place) -> None:
    """Other connections wait, and none fails."""
    store = place.open_with(CONTENTS, real_time=True)
    begun, done = threading.Barrier(3, timeout=30), threading.Event()

    def enqueue() -> int:
        mine, count = place.open(real_time=True), 0
        while not done.is_set():
            mine.queue.enqueue(many(3))
            count += 1
            if count == 1:
                begun.wait()
        return 3 * count

    with ThreadPoolExecutor(2) as pool:
        counts = [pool.submit(enqueue) for _ in range(2)]
        try:
            begun.wait()
            assert store.retention.partition_audit()
        finally:
            done.set()
        expected = sum(count.result() for count in counts)
    assert sum(finish(store, lease).job.ended for lease in claim(store, limit=expected)) == expected
    assert verify(store).ok


def test_conversion_gives_up_if_a_transaction_stays_open(place: Place, raw: Raw) -> None:
    """Claims and reports would wait behind it. Nothing is changed."""
    store = place.open_with(CONTENTS)
    with raw.transaction() as busy:
        busy.execute(f"SELECT count(*) FROM {raw.table('audit')}")
        with pytest.raises(Unavailable, match="try again later"):
            store.retention.partition_audit()
    assert months(raw) == []
    assert store.retention.partition_audit()


def test_conversion_names_the_views_and_triggers_that_prevent_it(place: Place, raw: Raw) -> None:
    """A view of the old table would show only one partition. Nothing is changed."""
    store = place.open_with(CONTENTS)
    raw("CREATE VIEW {mine} AS SELECT count(*) FROM {audit}")
    raw(
        "CREATE TRIGGER my_trigger BEFORE UPDATE ON {audit} FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match=r"trigger my_trigger, view .*mine"):
        store.retention.partition_audit()
    assert months(raw) == []
    raw("DROP VIEW {mine}")
    raw("DROP TRIGGER my_trigger ON {audit}")
    assert store.retention.partition_audit()


def test_owner_and_privileges_stay(place: Place, raw: Raw) -> None:
    """A superuser can partition the audit of the app's role, and a role that may read it still may."""
    store = place.open_with(CONTENTS)
    app, reader = f"app_{place.schema}", f"reader_{place.schema}"
    try:
        raw.script(f"CREATE ROLE {app}; CREATE ROLE {reader}; GRANT ALL ON SCHEMA {place.schema} TO {app}")
        raw.script(f"GRANT ALL ON ALL TABLES IN SCHEMA {place.schema} TO {app}")
        raw(f"ALTER TABLE {{audit}} OWNER TO {app}")
        raw(f"GRANT SELECT ON {{audit}} TO {reader}")
        assert store.retention.partition_audit()
        listed = raw(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = :schema::text::regnamespace "
            "AND relname LIKE 'audit%' AND relkind IN ('r', 'p')",
            schema=place.schema,
        )
        assert listed == [(app,)]
        assert raw("SELECT has_table_privilege(:role, :table, 'SELECT')", role=reader, table=raw.table("audit")) == [
            (True,)
        ]
    finally:
        raw.script(f"DROP OWNED BY {app}, {reader}; DROP ROLE {app}, {reader}")


def test_sqlite_has_no_partitions(tmp_path: Any) -> None:
    """The error says what happens instead; the other verbs do nothing."""
    place = sqlite_place(tmp_path)
    store = place.open_with(CONTENTS)
    with pytest.raises(UsageError, match="deletes the archived rows"):
        store.retention.partition_audit()
    assert store.retention.add_partitions() == 0
    assert not store.retention.remove_archived(age=0.0, limit=1)
    place.close()


# ---------------------------------------------------------------- months
def test_partitions_of_the_next_two_months_are_created(store: OpenStore, place: Place, raw: Raw) -> None:
    """Once each, whoever asks."""
    other = place.open()
    assert store.retention.add_partitions() == 0
    set_clock(place, 2026, 2, 28)
    assert (store.retention.add_partitions(), other.retention.add_partitions()) == (1, 0)
    assert months(raw) == [JANUARY, FEBRUARY, MARCH, APRIL]
    assert partition_of(raw, enqueue_at(store, 2026, 4, 30)) == {APRIL}
    set_clock(place, 2026, 12, 31)
    assert store.retention.add_partitions() == 3
    assert months(raw)[-3:] == ["audit_2026_12", "audit_2027_01", "audit_2027_02"]


def test_month_in_use_is_created_later(store: OpenStore, place: Place, raw: Raw) -> None:
    """A worker waits a second for the default partition, and then leaves the month to its next run."""
    set_clock(place, 2026, 2, 28)
    with raw.transaction() as busy:
        busy.execute(f"SELECT count(*) FROM {raw.table(DEFAULT)}")
        assert store.retention.add_partitions() == 0
    assert store.retention.add_partitions() == 1


# ---------------------------------------------------------------- writes to a partition
@pytest.mark.parametrize("table", ["audit", JANUARY, FEBRUARY, DEFAULT])
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE {%s} SET reason = 'x'",
        "DELETE FROM {%s}",
        "TRUNCATE {%s}",
        "INSERT INTO {%s} SELECT * FROM {%s} ON CONFLICT (job_id, version, n) DO UPDATE SET reason = 'x'",
    ],
)
def test_partition_is_protected_like_the_whole(store: OpenStore, raw: Raw, table: str, sql: str) -> None:
    """Update, delete and truncate are refused, on the audit and on each partition."""
    for date in ((2026, 1, 1), (2026, 2, 2), (2026, 9, 1)):
        enqueue_at(store, *date)
    end_all(store)
    before = raw.dump()
    with pytest.raises(raw.refusal, match="interlock refuses"):
        raw(sql.replace("%s", table))
    assert raw.dump() == before


def test_taken_number_of_a_note_is_retried(store: OpenStore, raw: Raw) -> None:
    """The error names the partition, not the audit."""
    finish(store, claimed(store))
    for name in (JANUARY, FEBRUARY):
        enqueue_at(store, 2026, 1 if name == JANUARY else 2, 5)
        with pytest.raises(psycopg.errors.UniqueViolation) as raised:
            raw(f"INSERT INTO {{audit}} SELECT * FROM {{{name}}}")
        assert should_retry(raised.value)

"""The courier's tables and queries on both databases."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeVar

import pytest
from sqlalchemy import Connection, Engine, insert, inspect, select
from sqlalchemy.exc import IntegrityError

from apps.common.database import make_engine
from apps.courier import tables
from apps.courier.tests.courier_kit import READER, CourierKit

T = TypeVar("T")
NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def run_in_transaction(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as tx:
        return work(tx)


def add_user(tx: Connection, id: int = READER, **values: object) -> None:
    tx.execute(insert(tables.users).values({"id": id, "name": "Ann", "language": "ru", "asked_at": NOON, **values}))


def add_file(tx: Connection, path: str = "disk:/Library/emma.pdf", **values: object) -> int:
    row = {"path": path, "name": path.rpartition("/")[2], "is_folder": False, **values}
    return tx.execute(insert(tables.files).values(row).returning(tables.files.c.id)).scalar_one()


# ---------------------------------------------------------------- migration
def test_migrating_again_changes_nothing(engine: Engine) -> None:
    run_in_transaction(engine, add_user)
    tables.migrate(engine)
    assert run_in_transaction(engine, lambda tx: tables.status_of(tx, READER)) == "PENDING"


def test_concurrent_migrations_succeed(database_url: str) -> None:
    engines, ready = [make_engine(database_url) for _ in range(6)], threading.Barrier(6)

    def migrate(engine: Engine) -> None:
        ready.wait()
        tables.migrate(engine)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(migrate, engines))
    assert set(inspect(engines[0]).get_table_names()) >= set(tables.metadata.tables)
    for engine in engines:
        engine.dispose()


def test_all_tables_have_the_couriers_prefix() -> None:
    assert all(name.startswith("courier_") for name in tables.metadata.tables)


def test_timestamps_are_utc_and_comparable_from_any_zone(engine: Engine) -> None:
    east = NOON.astimezone(timezone(timedelta(hours=5)))
    run_in_transaction(engine, lambda tx: add_user(tx, 1, asked_at=east))
    run_in_transaction(engine, lambda tx: add_user(tx, 2, asked_at=NOON + timedelta(seconds=1)))
    found = run_in_transaction(
        engine, lambda tx: tx.scalars(select(tables.users.c.asked_at).order_by(tables.users.c.asked_at)).all()
    )
    assert found == [NOON, NOON + timedelta(seconds=1)]
    assert {moment.tzinfo for moment in found if moment} == {UTC}


def test_database_rejects_an_unknown_status(engine: Engine) -> None:
    with pytest.raises(IntegrityError):
        run_in_transaction(engine, lambda tx: add_user(tx, status="KING"))


def test_path_of_any_length_has_one_row(engine: Engine) -> None:
    # Longer than PostgreSQL's index limit, and incompressible.
    path = "disk:/" + "".join(chr(0x4E00 + (n * n * 7919) % 20000) for n in range(8000))
    run_in_transaction(engine, lambda tx: add_file(tx, path))
    with pytest.raises(IntegrityError):
        run_in_transaction(engine, lambda tx: add_file(tx, path))


# ---------------------------------------------------------------- users and files
def test_unknown_user_has_no_status_and_no_language(engine: Engine) -> None:
    assert run_in_transaction(engine, lambda tx: (tables.status_of(tx, 5), tables.language_of(tx, 5))) == (None, "")


def test_largest_telegram_id_can_be_stored(engine: Engine) -> None:
    run_in_transaction(engine, lambda tx: add_user(tx, 2**52 - 1, status="ACTIVE"))
    assert run_in_transaction(
        engine, lambda tx: (tables.status_of(tx, 2**52 - 1), tables.language_of(tx, 2**52 - 1))
    ) == (
        "ACTIVE",
        "ru",
    )


def test_path_is_found_unless_it_is_gone_or_a_folder(engine: Engine) -> None:
    file, gone, folder = (
        run_in_transaction(engine, lambda tx, row=row: add_file(tx, **row))
        for row in ({"path": "disk:/a"}, {"path": "disk:/b", "gone": True}, {"path": "disk:/c", "is_folder": True})
    )
    assert run_in_transaction(engine, lambda tx: [tables.path_of(tx, id) for id in (file, gone, folder, 404)]) == [
        "disk:/a",
        None,
        None,
        None,
    ]
    assert run_in_transaction(engine, lambda tx: [tables.name_of(tx, id) for id in (file, gone, 404)]) == ["a", "b", ""]


@pytest.mark.parametrize(
    ("path", "folder", "is_inside"),
    [
        ("disk:/Library", "disk:/Library", True),
        ("disk:/Library/a", "disk:/Library", True),
        ("disk:/Library2/a", "disk:/Library", False),
        ("disk:/library/a", "disk:/Library", False),
        ("disk:/a", "disk:/", True),
        ("app:/a", "disk:/", False),
    ],
)
def test_is_inside_means_the_folder_and_everything_below_it(path: str, folder: str, is_inside: bool) -> None:
    assert tables.is_inside(path, folder) is is_inside


# ---------------------------------------------------------------- files that Telegram has
def test_newest_file_id_is_stored_until_it_is_deleted(engine: Engine) -> None:
    def story(tx: Connection) -> list[str | None]:
        seen = [tables.find_sent_file(tx, "c")]
        tables.save_sent_file(tx, "c", "old")
        tables.save_sent_file(tx, "c", "new")
        tables.save_sent_file(tx, "d", "other")
        seen.append(tables.find_sent_file(tx, "c"))
        tables.delete_sent_file(tx, "c")
        return [*seen, tables.find_sent_file(tx, "c"), tables.find_sent_file(tx, "d")]

    assert run_in_transaction(engine, story) == [None, "new", None, "other"]


# ---------------------------------------------------------------- deliveries
def test_delivery_is_recorded_once(kit: CourierKit) -> None:
    job_id = kit.order()
    ((user_id, file_id),) = kit.rows("SELECT user_id, file_id FROM courier_orders")

    def deliver(tx: Connection) -> None:
        tables.record_delivery(tx, job_id, user_id, file_id, 55, doubted=True)

    run_in_transaction(kit.courier.engine, deliver)
    assert [
        (str(job), *rest)
        for job, *rest in kit.rows("SELECT job_id, user_id, file_id, message_id, doubted FROM courier_deliveries")
    ] == [(job_id, user_id, file_id, 55, True)]
    with pytest.raises(IntegrityError):
        run_in_transaction(kit.courier.engine, deliver)


def test_doubt_is_recorded_once_and_stays(kit: CourierKit) -> None:
    job_id = kit.order()
    assert not run_in_transaction(kit.courier.engine, lambda tx: tables.has_doubt(tx, job_id))
    for _ in range(2):
        run_in_transaction(kit.courier.engine, lambda tx: tables.record_doubt(tx, job_id))
    assert run_in_transaction(kit.courier.engine, lambda tx: tables.has_doubt(tx, job_id))


def test_receipt_state_follows_the_engines_receipts(kit: CourierKit) -> None:
    job_id = kit.order()
    table = "interlock.receipts" if kit.courier.engine.dialect.name == "postgresql" else "interlock_receipts"

    def seen() -> str:
        return run_in_transaction(kit.courier.engine, lambda tx: tables.receipt_state(tx, job_id, "send"))

    assert seen() == "none"
    columns, at = "job_id, name, kind, attempt, holder, args_hash, begun_at", "2026-03-01T12:00:00.000000Z"
    kit.write(f"INSERT INTO {table} ({columns}) VALUES (:id, 'send', 'effect', 1, 1, 'h', '{at}')", id=job_id)
    assert seen() == "asked"
    kit.write(f"UPDATE {table} SET value = 'null', applied_at = '{at}' WHERE job_id = :id", id=job_id)
    assert seen() == "applied"


def test_there_is_no_settings_hash_before_the_first_token(engine: Engine) -> None:
    assert run_in_transaction(engine, tables.token_settings_hash) == ""
    run_in_transaction(
        engine, lambda tx: tx.execute(insert(tables.tokens).values(service="yandex", settings_hash="g", generation=3))
    )
    assert run_in_transaction(engine, tables.token_settings_hash) == "g"


# ---------------------------------------------------------------- concurrency
def test_status_read_in_a_transaction_blocks_decisions(engine: Engine) -> None:
    run_in_transaction(engine, lambda tx: add_user(tx, status="ACTIVE"))
    begun, order = threading.Event(), list[str]()

    def block() -> None:
        begun.set()
        with engine.begin() as tx:
            tx.execute(tables.users.update().values(status="BLOCKED"))
        order.append("blocked")

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as tx:
            assert tables.status_of(tx, READER) == "ACTIVE"
            blocking = pool.submit(block)
            assert begun.wait(10)
            # The other transaction waits for ours, or has not started yet.
            with pytest.raises(TimeoutError):
                blocking.result(timeout=0.3)
            order.append("read")
        blocking.result(timeout=10)
    assert order == ["read", "blocked"]

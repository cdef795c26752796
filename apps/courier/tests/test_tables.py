"""The courier's tables: made once, each statement true on both databases."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import TypeVar

import pytest
from sqlalchemy import Connection, Engine, insert, inspect, select
from sqlalchemy.exc import IntegrityError

from apps.common.database import connect
from apps.courier import tables
from apps.courier.tests.kit import READER, Office

T = TypeVar("T")
NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def asked(engine: Engine, question: Callable[[Connection], T]) -> T:
    with engine.begin() as tx:
        return question(tx)


def add_user(tx: Connection, id: int = READER, **values: object) -> None:
    tx.execute(insert(tables.users).values({"id": id, "name": "Ann", "language": "ru", "asked_at": NOON, **values}))


def add_file(tx: Connection, path: str = "disk:/Library/emma.pdf", **values: object) -> int:
    row = {"path": path, "name": path.rpartition("/")[2], "is_folder": False, **values}
    return tx.execute(insert(tables.files).values(row).returning(tables.files.c.id)).scalar_one()


# ---------------------------------------------------------------- the database
def test_migrating_again_changes_nothing(engine: Engine) -> None:
    asked(engine, add_user)
    tables.migrate(engine)
    assert asked(engine, lambda tx: tables.status_of(tx, READER)) == "PENDING"


def test_many_may_migrate_at_once(database_url: str) -> None:
    engines, ready = [connect(database_url) for _ in range(6)], threading.Barrier(6)

    def migrate(engine: Engine) -> None:
        ready.wait()
        tables.migrate(engine)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(migrate, engines))
    assert set(inspect(engines[0]).get_table_names()) >= set(tables.metadata.tables)
    for engine in engines:
        engine.dispose()


def test_all_tables_are_the_couriers_by_name() -> None:
    assert all(name.startswith("courier_") for name in tables.metadata.tables)


def test_moments_come_back_in_utc_and_compare_whatever_zone_they_were_given_in(engine: Engine) -> None:
    east = NOON.astimezone(timezone(timedelta(hours=5)))
    asked(engine, lambda tx: add_user(tx, 1, asked_at=east))
    asked(engine, lambda tx: add_user(tx, 2, asked_at=NOON + timedelta(seconds=1)))
    found = asked(engine, lambda tx: tx.scalars(select(tables.users.c.asked_at).order_by(tables.users.c.asked_at)).all())
    assert found == [NOON, NOON + timedelta(seconds=1)]
    assert {moment.tzinfo for moment in found if moment} == {UTC}


def test_an_unknown_status_is_refused_by_the_database(engine: Engine) -> None:
    with pytest.raises(IntegrityError):
        asked(engine, lambda tx: add_user(tx, status="KING"))


def test_a_path_has_one_row_however_long_it_is(engine: Engine) -> None:
    # More than an index of PostgreSQL has room for, and nothing that could be compressed.
    path = "disk:/" + "".join(chr(0x4E00 + (n * n * 7919) % 20000) for n in range(8000))
    asked(engine, lambda tx: add_file(tx, path))
    with pytest.raises(IntegrityError):
        asked(engine, lambda tx: add_file(tx, path))


# ---------------------------------------------------------------- people and files
def test_a_stranger_has_no_status_and_no_language(engine: Engine) -> None:
    assert asked(engine, lambda tx: (tables.status_of(tx, 5), tables.language_of(tx, 5))) == (None, "")


def test_a_user_may_have_the_largest_id_that_telegram_gives(engine: Engine) -> None:
    asked(engine, lambda tx: add_user(tx, 2**52 - 1, status="ACTIVE"))
    assert asked(engine, lambda tx: (tables.status_of(tx, 2**52 - 1), tables.language_of(tx, 2**52 - 1))) == ("ACTIVE", "ru")


def test_a_path_is_known_unless_it_is_gone_or_a_folder(engine: Engine) -> None:
    file, gone, folder = (asked(engine, lambda tx, row=row: add_file(tx, **row)) for row in (
        {"path": "disk:/a"}, {"path": "disk:/b", "gone": True}, {"path": "disk:/c", "is_folder": True}))
    assert asked(engine, lambda tx: [tables.path_of(tx, id) for id in (file, gone, folder, 404)]) == ["disk:/a", None, None, None]
    assert asked(engine, lambda tx: [tables.name_of(tx, id) for id in (file, gone, 404)]) == ["a", "b", ""]


@pytest.mark.parametrize(("path", "folder", "is_inside"), [
    ("disk:/Library", "disk:/Library", True), ("disk:/Library/a", "disk:/Library", True), ("disk:/Library2/a", "disk:/Library", False),
    ("disk:/library/a", "disk:/Library", False), ("disk:/a", "disk:/", True), ("app:/a", "disk:/", False),
])  # fmt: skip
def test_inside_is_the_folder_and_what_is_below_it(path: str, folder: str, is_inside: bool) -> None:
    assert tables.inside(path, folder) is is_inside


# ---------------------------------------------------------------- what Telegram has already
def test_the_newest_id_of_a_content_is_remembered_until_it_is_forgotten(engine: Engine) -> None:
    def story(tx: Connection) -> list[str | None]:
        seen = [tables.remembered(tx, "c")]
        tables.remember(tx, "c", "old")
        tables.remember(tx, "c", "new")
        tables.remember(tx, "d", "other")
        seen.append(tables.remembered(tx, "c"))
        tables.forget(tx, "c")
        return [*seen, tables.remembered(tx, "c"), tables.remembered(tx, "d")]

    assert asked(engine, story) == [None, "new", None, "other"]


# ---------------------------------------------------------------- a delivery
def test_a_delivery_is_recorded_once(office: Office) -> None:
    job_id = office.order()
    (user_id, file_id), = office.rows("SELECT user_id, file_id FROM courier_orders")

    def deliver(tx: Connection) -> None:
        tables.delivered(tx, job_id, user_id, file_id, 55, doubted=True)

    asked(office.courier.engine, deliver)
    assert [(str(job), *rest) for job, *rest in office.rows("SELECT job_id, user_id, file_id, message_id, doubted FROM courier_deliveries")] == [
        (job_id, user_id, file_id, 55, True)]
    with pytest.raises(IntegrityError):
        asked(office.courier.engine, deliver)


def test_a_doubt_is_noted_once_and_stays(office: Office) -> None:
    job_id = office.order()
    assert not asked(office.courier.engine, lambda tx: tables.doubted(tx, job_id))
    for _ in range(2):
        asked(office.courier.engine, lambda tx: tables.doubt(tx, job_id))
    assert asked(office.courier.engine, lambda tx: tables.doubted(tx, job_id))


def test_the_receipt_of_an_outside_call_is_read_as_the_engine_wrote_it(office: Office) -> None:
    job_id = office.order()
    table = "interlock.receipts" if office.courier.engine.dialect.name == "postgresql" else "interlock_receipts"

    def seen() -> str:
        return asked(office.courier.engine, lambda tx: tables.receipt(tx, job_id, "send"))

    assert seen() == "none"
    columns, at = "job_id, name, kind, attempt, holder, args_hash, asked_at", "2026-03-01T12:00:00.000000Z"
    office.write(f"INSERT INTO {table} ({columns}) VALUES (:id, 'send', 'effect', 1, 1, 'h', '{at}')", id=job_id)
    assert seen() == "asked"
    office.write(f"UPDATE {table} SET value = 'null', applied_at = '{at}' WHERE job_id = :id", id=job_id)
    assert seen() == "applied"


def test_nothing_is_known_of_the_tokens_secrets_before_there_is_one(engine: Engine) -> None:
    assert asked(engine, tables.token_given) == ""
    asked(engine, lambda tx: tx.execute(insert(tables.tokens).values(service="yandex", given="g", generation=3)))
    assert asked(engine, tables.token_given) == "g"


# ---------------------------------------------------------------- side by side
def test_nobody_decides_about_a_user_whose_status_a_transaction_has_read(engine: Engine) -> None:
    asked(engine, lambda tx: add_user(tx, status="ACTIVE"))
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
            # It is at the database's door by now, or will be: either way it stays outside until we are through.
            with pytest.raises(TimeoutError):
                blocking.result(timeout=0.3)
            order.append("read")
        blocking.result(timeout=10)
    assert order == ["read", "blocked"]

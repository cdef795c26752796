"""The overview of deliveries, workers and errors for administrators."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from apps.common.tests.app_kit import in_background
from apps.courier import delivery_views, tables
from apps.courier.jobs import LEASE, alert_token
from apps.courier.service_models import WorkerAge
from apps.courier.tests.courier_kit import ADMIN, READER, CourierKit
from interlock.testing import Crashed, Failpoint


# ---------------------------------------------------------------- administrators
def test_administrators_are_alerted_once_a_day_for_the_same_settings(kit: CourierKit) -> None:
    def alerted(at: datetime) -> int:
        with kit.courier.engine.begin() as tx:
            alert_token(tx, kit.courier.alert, kit.settings.admins, at)
        return len(kit.app.jobs(kind="alert"))

    at = datetime(2026, 1, 15, 23, 0, tzinfo=UTC)
    assert [alerted(at + timedelta(minutes=each)) for each in (0, 10, 59)] == [1, 1, 1]
    assert [job.payload for job in kit.app.jobs(kind="alert")] == [{"admin_id": ADMIN, "subject": "token"}]
    kit.write("INSERT INTO courier_tokens (service, settings_hash, generation) VALUES ('yandex', 'g', 1)")
    assert alerted(at) == 2
    kit.write("UPDATE courier_tokens SET generation = 2")
    assert alerted(at) == 2
    assert alerted(at + timedelta(hours=1)) == 3


def test_overview_of_an_empty_database(kit: CourierKit) -> None:
    overview = kit.service.overview()
    assert (overview.waiting, overview.running, overview.stuck, overview.errors, overview.doubted) == (0, 0, [], [], 0)
    assert overview.token_expires_at is None


def test_overview_counts_waiting_and_ended_deliveries(kit: CourierKit) -> None:
    kit.order()
    kit.run()
    for _ in range(2):
        kit.order()
    kit.clock.advance(90)
    kit.write("UPDATE courier_tokens SET expires_at = NULL")
    overview = kit.service.overview()
    assert {state: count for state, count in overview.counts.items() if count} == {"DELIVERED": 1, "QUEUED": 2}
    assert (overview.waiting, overview.running) == (2, 0)
    assert 90 <= overview.oldest < 100
    expires = kit.clock.now() + timedelta(days=3)
    with kit.courier.engine.begin() as tx:
        tx.execute(tables.tokens.delete())
        tx.execute(tables.tokens.insert().values(service="yandex", settings_hash="g", expires_at=expires))
    assert kit.service.overview().token_expires_at == expires


def test_overview_shows_the_newest_errors_by_code_without_names(kit: CourierKit) -> None:
    kit.add_user(READER, name="Ann Secretive")
    file_id = kit.add_file("private diary.pdf")
    for n in range(7):
        kit.order_view(READER, file_id, f"n{n}")
        kit.yandex.fail("resources", 404 if n < 6 else 403)
        kit.run()
        kit.clock.advance(60)
    kit.service.cancel(READER, kit.order_view(READER, file_id, "not wanted any more").job_id)
    overview = kit.service.overview()
    assert [error.code for error in overview.errors] == ["forbidden", *["not_found"] * 4]
    assert overview.errors[0].at > overview.errors[1].at
    assert all(error.sentence for error in overview.errors)
    told = repr(overview)
    assert not [
        secret for secret in ("private", "diary", "Secretive", "disk:", str(kit.telegram.token)) if secret in told
    ]


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        ("not_found: Yandex Disk has no such file.", "not_found", "Yandex Disk has no such file."),
        ("temporary: Yandex Disk answered 503.", "temporary", "Yandex Disk answered 503."),
        ("lease lost", "lease lost", ""),
        (
            "it ran longer than its kind's max_runtime of 21600 s",
            "it ran longer than its kind's max_runtime of 21600 s",
            "",
        ),
        (
            (
                'Traceback (most recent call last):\n  File "x.py", line 1, in f\n'
                '    g("/Library/diary.pdf")\nValueError: diary.pdf of 7'
            ),
            "ValueError",
            "",
        ),
        (
            'Traceback (most recent call last):\n  File "x.py", line 1\nhttpx.ConnectError: https://x/bot1:abc',
            "ConnectError",
            "",
        ),
        ('Traceback (most recent call last):\n  File "x.py", line 1\nKeyError', "KeyError", ""),
        ("not_found: one line\nand user 7 on another", "unknown", ""),
        ("diary: an unknown code", "unknown", ""),
        ("The payload {'user_id': 7} does not fit", "unknown", ""),
        ("lease lost of Ann", "unknown", ""),
        ("Traceback (most recent call last):\nAnn Smith: hello", "unknown", ""),
        ("", "unknown", ""),
        (None, "unknown", ""),
    ],
)
def test_only_known_error_texts_are_public(error: str | None, code: str, sentence: str) -> None:
    assert delivery_views.public_error(error) == (code, sentence)


def test_live_workers_are_listed_with_their_age(kit: CourierKit) -> None:
    kit.order()
    gate, seen = kit.yandex.gate("content"), list[WorkerAge]()

    def look() -> None:
        assert gate.arrived.wait(20)
        kit.worker.heartbeat()
        seen.extend(kit.service.overview().workers)
        gate.open()

    with in_background(look):
        kit.run()
    assert [(each.alive, each.age) for each in seen] == [(True, 0)]
    assert kit.service.overview().workers == []


def test_killed_worker_is_listed_as_not_alive(kit: CourierKit) -> None:
    kit.order()
    kit.worker.crash_at(Failpoint.AFTER_CLAIM)
    with pytest.raises(Crashed):
        kit.run()
    kit.clock.advance(600)
    assert [(each.age, each.alive) for each in kit.service.overview().workers] == [(600, False)]
    assert [(each.state, each.heartbeat_at) for each in kit.service.overview().stuck] == [
        ("CLAIMED", kit.clock.now() - timedelta(seconds=600))
    ]


def test_delivery_is_stuck_from_the_moment_it_can_be_recovered(kit: CourierKit) -> None:
    """It is not stuck before its lease expires or after another worker has taken it."""
    id = kit.order()
    kit.worker.crash_at(Failpoint.AFTER_CLAIM)
    with pytest.raises(Crashed):
        kit.run()
    kit.clock.advance(LEASE)
    assert kit.service.overview().stuck == []
    kit.clock.advance(1)
    assert [each.job_id for each in kit.service.overview().stuck] == [id]
    kit.run()
    assert kit.service.overview().stuck == []


def test_stuck_deliveries_are_found_by_an_index(kit: CourierKit) -> None:
    """The number of ended deliveries does not slow down the query."""
    with kit.application.engine.begin() as tx:
        if tx.dialect.name == "postgresql":
            tx.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plans: list[str] = []

        def explained(*given: Any) -> Any:
            plans.append(
                str(
                    tx.exec_driver_sql(
                        f"EXPLAIN {'QUERY PLAN ' if tx.dialect.name == 'sqlite' else ''}{given[2]}", given[3]
                    ).all()
                )
            )

        event.listen(tx, "before_cursor_execute", explained, once=True)
        tables.stuck_jobs(tx, "deliver", kit.clock.now())
    assert "executions_leases" in plans[0]


def test_only_deliveries_are_reported_as_stuck(kit: CourierKit) -> None:
    kit.service.alert_token()
    kit.worker.crash_at(Failpoint.AFTER_CLAIM)
    with pytest.raises(Crashed):
        kit.run()
    kit.clock.advance(600)
    assert (len(kit.app.status().stuck), kit.service.overview().stuck) == (1, [])

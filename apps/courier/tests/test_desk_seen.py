"""What is seen of deliveries: by their users, on cards, and by administrators."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from apps.common.tests.kits import meanwhile
from apps.courier import desk as desks
from apps.courier import tables
from apps.courier.desk import WorkerAge
from apps.courier.jobs import LEASE, alert_token
from apps.courier.redact import who
from apps.courier.tests.kit import ADMIN, QUEUED, READER, STRANGER, Office
from interlock.testing import Crashed, Point

NOBODYS = "00000000-0000-7000-8000-000000000000"


@contextmanager
def statements(office: Office) -> Iterator[list[str]]:
    """What is sent to the database meanwhile."""
    seen: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    event.listen(office.courier.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(office.courier.engine, "before_cursor_execute", note)


# ---------------------------------------------------------------- what is seen of a delivery
def test_anothers_delivery_is_not_found_as_one_that_does_not_exist(office: Office) -> None:
    job_id = office.order()
    office.user(8)
    for id, job in ((8, job_id), (READER, NOBODYS), (READER, "no id"), (READER, job_id.upper()), (STRANGER, job_id), (2**80, job_id)):
        assert office.desk.shown(id, job) is None
        assert office.desk.cancel(id, job) is None
    assert office.state(job_id) == "QUEUED"


def test_the_active_delivery_of_a_file_is_the_newest_that_has_not_ended(office: Office) -> None:
    user_id, file_id, other = office.user().id, office.file("a.pdf"), office.file("b.pdf")
    assert office.desk.active(user_id, file_id) is None
    first, second = office.ordered(user_id, file_id, "n1"), office.ordered(user_id, file_id, "n2")
    assert office.desk.active(user_id, file_id) == second
    office.desk.cancel(user_id, second.job_id)
    assert office.desk.active(user_id, file_id) == first
    assert (office.desk.active(user_id, other), office.desk.active(8, file_id), office.desk.active(user_id, 2**40)) == (None, None, None)
    office.run()
    assert office.state(first.job_id) == "DELIVERED"
    assert office.desk.active(user_id, file_id) is None


def test_a_queued_delivery_is_cancelled_at_once_and_for_good(office: Office) -> None:
    job_id = office.order()
    shown = office.desk.cancel(READER, job_id)
    assert shown is not None
    assert shown.state == "CANCELLED"
    office.run()
    assert office.desk.cancel(READER, job_id) == shown
    assert office.path(job_id) == [*QUEUED, ("QUEUED", "CANCELLED")]
    assert office.app.history(job_id)[-1].actor == f"operator:{who(READER)}"


def test_a_delivery_that_runs_goes_on_though_its_button_is_pressed(office: Office) -> None:
    job_id = office.order()
    link = office.yandex.gate("download")

    def press() -> object:
        assert link.arrived.wait(20)
        try:
            return office.desk.cancel(READER, job_id)
        finally:
            link.open()

    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press)
        office.run()
        shown = pressed.result()
    assert getattr(shown, "state", None) == "DOWNLOADING"
    assert office.state(job_id) == "DELIVERED"
    assert office.app.get(job_id).cancel_requested_at is None


# ---------------------------------------------------------------- cards
def test_open_cards_are_all_that_follow_a_delivery_in_one_statement(office: Office) -> None:
    a, b, c = office.order(nonce="1"), office.order(nonce="2"), office.order(nonce="3")
    office.desk.card(a, 11)
    office.desk.card(b, 12)
    office.desk.mark_shown(office.desk.open_cards()[1], "gone", closed=True)
    with statements(office) as seen:
        cards = office.desk.open_cards()
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 1
    assert [(card.shown.job_id, card.card_id, card.user_id, card.language, card.shown_text) for card in cards] == [(a, 11, READER, "en", None)]
    assert cards[0].shown == office.desk.shown(READER, a)
    assert c not in [card.shown.job_id for card in cards]


def test_a_card_keeps_what_was_shown_and_a_new_message_begins_anew(office: Office) -> None:
    job_id = office.order()
    office.desk.card(job_id, 11)
    [card] = office.desk.open_cards()
    office.desk.mark_shown(card, "waiting", closed=False)
    assert [(card.card_id, card.shown_text) for card in office.desk.open_cards()] == [(11, "waiting")]
    office.desk.mark_shown(card, "delivered", closed=True)
    assert office.desk.open_cards() == []
    office.desk.card(job_id, 12)
    assert [(card.card_id, card.shown_text) for card in office.desk.open_cards()] == [(12, None)]


def test_what_is_noted_of_an_old_message_says_nothing_of_the_new_one(office: Office) -> None:
    """Else a delivery that ends between a look and its note would be closed in a message where its end was never shown."""
    job_id = office.order()
    office.desk.card(job_id, 11)
    [old] = office.desk.open_cards()
    office.desk.card(job_id, 12)
    office.desk.mark_shown(old, "delivered", closed=True)
    assert [(card.card_id, card.shown_text) for card in office.desk.open_cards()] == [(12, None)]


def test_a_card_shows_how_far_a_running_delivery_is(office: Office) -> None:
    job_id = office.order()
    office.desk.card(job_id, 11)
    seen = list[Any]()
    link = office.yandex.gate("download")
    executions = "interlock.executions" if office.courier.engine.dialect.name == "postgresql" else "interlock_executions"

    def look() -> None:
        assert link.arrived.wait(20)
        office.write(f"UPDATE {executions} SET progress = '[5.0, 38.0, \"\"]' WHERE job_id = :id", id=job_id)
        seen.extend(office.desk.open_cards())
        link.open()

    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(look)
        office.run()
        looked.result()
    assert [(card.shown.state, card.shown.done, card.shown.total, card.shown.attempt) for card in seen] == [("DOWNLOADING", 5, 38, 1)]
    ended = office.desk.shown(READER, job_id)
    assert ended is not None
    assert (ended.state, ended.done, ended.total) == ("DELIVERED", None, None)


def test_a_failed_delivery_says_why_by_a_code(office: Office) -> None:
    job_id = office.order()
    office.yandex.fail("resources", 404)
    office.run()
    shown = office.desk.shown(READER, job_id)
    assert shown is not None
    assert (shown.state, shown.error_code) == ("FAILED", "not_found")


def test_a_delivery_that_waits_for_its_next_try_says_why_and_shows_no_old_progress(office: Office) -> None:
    job_id = office.order()
    office.telegram.fail("sendDocument", 429, retry_after=5)
    office.run()
    assert office.app.executions(job_id)[0].progress is not None
    shown = office.desk.shown(READER, job_id)
    assert shown is not None
    assert (shown.state, shown.attempt, shown.error_code, shown.done, shown.total) == ("QUEUED", 1, "trouble", None, None)


def test_a_doubted_delivery_says_so(office: Office) -> None:
    job_id = office.order()
    with office.courier.engine.begin() as tx:
        tables.doubt(tx, job_id)
    shown = office.desk.shown(READER, job_id)
    assert shown is not None
    assert shown.doubted
    assert office.desk.overview().doubted == 1


# ---------------------------------------------------------------- administrators
def test_each_administrator_is_alerted_once_a_day_for_the_same_settings(office: Office) -> None:
    def alerted(at: datetime) -> int:
        with office.courier.engine.begin() as tx:
            alert_token(tx, office.courier.alert, office.settings.admins, at)
        return len(office.app.jobs(kind="alert"))

    at = datetime(2026, 1, 15, 23, 0, tzinfo=UTC)
    assert [alerted(at + timedelta(minutes=each)) for each in (0, 10, 59)] == [1, 1, 1]
    assert [job.payload for job in office.app.jobs(kind="alert")] == [{"admin_id": ADMIN, "what": "token"}]
    office.write("INSERT INTO courier_tokens (service, given, generation) VALUES ('yandex', 'g', 1)")
    assert alerted(at) == 2
    office.write("UPDATE courier_tokens SET generation = 2")
    assert alerted(at) == 2
    assert alerted(at + timedelta(hours=1)) == 3


def test_an_empty_office_is_overseen(office: Office) -> None:
    overview = office.desk.overview()
    assert (overview.waiting, overview.running, overview.stuck, overview.errors, overview.doubted) == (0, 0, [], [], 0)
    assert overview.token_expires_at is None


def test_the_overview_counts_what_waits_and_what_is_done(office: Office) -> None:
    office.order()
    office.run()
    for _ in range(2):
        office.order()
    office.clock.advance(90)
    office.write("UPDATE courier_tokens SET expires_at = NULL")
    overview = office.desk.overview()
    assert {state: count for state, count in overview.counts.items() if count} == {"DELIVERED": 1, "QUEUED": 2}
    assert (overview.waiting, overview.running) == (2, 0)
    assert 90 <= overview.oldest < 100
    expires = office.clock.now() + timedelta(days=3)
    with office.courier.engine.begin() as tx:
        tx.execute(tables.tokens.delete())
        tx.execute(tables.tokens.insert().values(service="yandex", given="g", expires_at=expires))
    assert office.desk.overview().token_expires_at == expires


def test_the_overview_shows_the_newest_errors_by_code_and_nobody_by_name(office: Office) -> None:
    office.user(READER, name="Ann Secretive")
    file_id = office.file("private diary.pdf")
    for n in range(7):
        office.ordered(READER, file_id, f"n{n}")
        office.yandex.fail("resources", 404 if n < 6 else 403)
        office.run()
        office.clock.advance(60)
    office.desk.cancel(READER, office.ordered(READER, file_id, "not wanted any more").job_id)
    overview = office.desk.overview()
    assert [error.code for error in overview.errors] == ["forbidden", *["not_found"] * 4]
    assert overview.errors[0].at > overview.errors[1].at
    assert all(error.sentence for error in overview.errors)
    told = repr(overview)
    assert not [secret for secret in ("private", "diary", "Secretive", "disk:", str(office.telegram.token)) if secret in told]


@pytest.mark.parametrize(("error", "code", "sentence"), [
    ("not_found: Yandex Disk has no such file.", "not_found", "Yandex Disk has no such file."),
    ("trouble: Yandex Disk answered 503.", "trouble", "Yandex Disk answered 503."),
    ("lease lost", "lease lost", ""),
    ("it ran longer than its kind's max_runtime of 21600 s", "it ran longer than its kind's max_runtime of 21600 s", ""),
    ('Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g("/Library/diary.pdf")\nValueError: diary.pdf of 7', "ValueError", ""),
    ('Traceback (most recent call last):\n  File "x.py", line 1\nhttpx.ConnectError: https://x/bot1:abc', "ConnectError", ""),
    ('Traceback (most recent call last):\n  File "x.py", line 1\nKeyError', "KeyError", ""),
    ("not_found: one line\nand user 7 on another", "unknown", ""),
    ("diary: a code that nobody knows", "unknown", ""),
    ("The payload {'user_id': 7} does not fit", "unknown", ""),
    ("lease lost of Ann", "unknown", ""),
    ("Traceback (most recent call last):\nAnn Smith: hello", "unknown", ""),
    ("", "unknown", ""),
    (None, "unknown", ""),
])  # fmt: skip
def test_of_an_error_only_known_words_are_shown(error: str | None, code: str, sentence: str) -> None:
    assert desks._told(error) == (code, sentence)


def test_workers_that_were_heard_of_are_listed_with_their_age(office: Office) -> None:
    office.order()
    gate, seen = office.yandex.gate("content"), list[WorkerAge]()

    def look() -> None:
        assert gate.arrived.wait(20)
        office.worker.beat()
        seen.extend(office.desk.overview().workers)
        gate.open()

    with meanwhile(look):
        office.run()
    assert [(each.alive, each.age) for each in seen] == [(True, 0)]
    assert office.desk.overview().workers == []


def test_a_worker_that_was_killed_is_listed_as_silent(office: Office) -> None:
    office.order()
    office.worker.crash_at(Point.AFTER_CLAIM)
    with pytest.raises(Crashed):
        office.run()
    office.clock.advance(600)
    assert [(each.age, each.alive) for each in office.desk.overview().workers] == [(600, False)]
    assert [(each.state, each.heartbeat_at) for each in office.desk.overview().stuck] == [("CLAIMED", office.clock.now() - timedelta(seconds=600))]


def test_delivery_is_stuck_from_the_moment_at_which_recovery_takes_it(office: Office) -> None:
    """Not before its lease is over, and no longer when another worker has taken it."""
    id = office.order()
    office.worker.crash_at(Point.AFTER_CLAIM)
    with pytest.raises(Crashed):
        office.run()
    office.clock.advance(LEASE)
    assert office.desk.overview().stuck == []
    office.clock.advance(1)
    assert [each.job_id for each in office.desk.overview().stuck] == [id]
    office.run()
    assert office.desk.overview().stuck == []


def test_stuck_deliveries_are_found_by_an_index(office: Office) -> None:
    """However many have ended."""
    with office.application.engine.begin() as tx:
        if tx.dialect.name == "postgresql":
            tx.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plans: list[str] = []

        def explained(*given: Any) -> Any:
            plans.append(str(tx.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' if tx.dialect.name == 'sqlite' else ''}{given[2]}", given[3]).all()))

        event.listen(tx, "before_cursor_execute", explained, once=True)
        tables.silent(tx, "deliver", office.clock.now())
    assert "executions_leases" in plans[0]


def test_only_deliveries_are_said_to_be_stuck(office: Office) -> None:
    office.desk.alert_token()
    office.worker.crash_at(Point.AFTER_CLAIM)
    with pytest.raises(Crashed):
        office.run()
    office.clock.advance(600)
    assert (len(office.app.status().stuck), office.desk.overview().stuck) == (1, [])

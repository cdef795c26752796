"""Deliveries as users, cards and administrators see them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from apps.courier import tables
from apps.courier.redact import user_alias
from apps.courier.tests.courier_kit import QUEUED, READER, STRANGER, CourierKit

UNKNOWN_JOB = "00000000-0000-7000-8000-000000000000"


@contextmanager
def statements(kit: CourierKit) -> Iterator[list[str]]:
    """Record the statements that are sent to the database."""
    seen: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        seen.append(statement)

    event.listen(kit.courier.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(kit.courier.engine, "before_cursor_execute", note)


# ---------------------------------------------------------------- deliveries
def test_delivery_of_another_user_is_not_found(kit: CourierKit) -> None:
    job_id = kit.order()
    kit.add_user(8)
    for id, job in (
        (8, job_id),
        (READER, UNKNOWN_JOB),
        (READER, "no id"),
        (READER, job_id.upper()),
        (STRANGER, job_id),
        (2**80, job_id),
    ):
        assert kit.service.get_delivery(id, job) is None
        assert kit.service.cancel(id, job) is None
    assert kit.state(job_id) == "QUEUED"


def test_active_delivery_is_the_newest_that_has_not_ended(kit: CourierKit) -> None:
    user_id, file_id, other = kit.add_user().id, kit.add_file("a.pdf"), kit.add_file("b.pdf")
    assert kit.service.active_delivery(user_id, file_id) is None
    first, second = kit.order_view(user_id, file_id, "n1"), kit.order_view(user_id, file_id, "n2")
    assert kit.service.active_delivery(user_id, file_id) == second
    kit.service.cancel(user_id, second.job_id)
    assert kit.service.active_delivery(user_id, file_id) == first
    assert (
        kit.service.active_delivery(user_id, other),
        kit.service.active_delivery(8, file_id),
        kit.service.active_delivery(user_id, 2**40),
    ) == (
        None,
        None,
        None,
    )
    kit.run()
    assert kit.state(first.job_id) == "DELIVERED"
    assert kit.service.active_delivery(user_id, file_id) is None


def test_queued_delivery_is_cancelled_for_good(kit: CourierKit) -> None:
    job_id = kit.order()
    shown = kit.service.cancel(READER, job_id)
    assert shown is not None
    assert shown.state == "CANCELLED"
    kit.run()
    assert kit.service.cancel(READER, job_id) == shown
    assert kit.transitions(job_id) == [*QUEUED, ("QUEUED", "CANCELLED")]
    assert kit.app.history(job_id)[-1].actor == f"operator:{user_alias(READER)}"


def test_running_delivery_continues_after_a_cancel_press(kit: CourierKit) -> None:
    job_id = kit.order()
    link = kit.yandex.gate("download")

    def press() -> object:
        assert link.arrived.wait(20)
        try:
            return kit.service.cancel(READER, job_id)
        finally:
            link.open()

    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press)
        kit.run()
        shown = pressed.result()
    assert getattr(shown, "state", None) == "DOWNLOADING"
    assert kit.state(job_id) == "DELIVERED"
    assert kit.app.get(job_id).cancel_requested_at is None


# ---------------------------------------------------------------- cards
def test_open_cards_are_read_in_one_statement(kit: CourierKit) -> None:
    a, b, c = kit.order(nonce="1"), kit.order(nonce="2"), kit.order(nonce="3")
    kit.service.attach_card(a, 11)
    kit.service.attach_card(b, 12)
    kit.service.mark_shown(kit.service.open_cards()[1], "gone", closed=True)
    with statements(kit) as seen:
        cards = kit.service.open_cards()
    assert len([each for each in seen if not each.startswith("BEGIN")]) == 1
    assert [(card.delivery.job_id, card.card_id, card.user_id, card.language, card.shown_text) for card in cards] == [
        (a, 11, READER, "en", None)
    ]
    assert cards[0].delivery == kit.service.get_delivery(READER, a)
    assert c not in [card.delivery.job_id for card in cards]


def test_card_stores_its_text_and_a_new_message_starts_empty(kit: CourierKit) -> None:
    job_id = kit.order()
    kit.service.attach_card(job_id, 11)
    [card] = kit.service.open_cards()
    kit.service.mark_shown(card, "waiting", closed=False)
    assert [(card.card_id, card.shown_text) for card in kit.service.open_cards()] == [(11, "waiting")]
    kit.service.mark_shown(card, "delivered", closed=True)
    assert kit.service.open_cards() == []
    kit.service.attach_card(job_id, 12)
    assert [(card.card_id, card.shown_text) for card in kit.service.open_cards()] == [(12, None)]


def test_text_of_an_old_message_does_not_close_the_new_one(kit: CourierKit) -> None:
    """Otherwise the end of a delivery could be marked as shown in a message that never showed it."""
    job_id = kit.order()
    kit.service.attach_card(job_id, 11)
    [old] = kit.service.open_cards()
    kit.service.attach_card(job_id, 12)
    kit.service.mark_shown(old, "delivered", closed=True)
    assert [(card.card_id, card.shown_text) for card in kit.service.open_cards()] == [(12, None)]


def test_card_shows_the_progress_of_a_running_delivery(kit: CourierKit) -> None:
    job_id = kit.order()
    kit.service.attach_card(job_id, 11)
    seen = list[Any]()
    link = kit.yandex.gate("download")
    executions = "interlock.executions" if kit.courier.engine.dialect.name == "postgresql" else "interlock_executions"

    def look() -> None:
        assert link.arrived.wait(20)
        kit.write(f"UPDATE {executions} SET progress = '[5.0, 38.0, \"\"]' WHERE job_id = :id", id=job_id)
        seen.extend(kit.service.open_cards())
        link.open()

    with ThreadPoolExecutor(1) as pool:
        looked = pool.submit(look)
        kit.run()
        looked.result()
    assert [(card.delivery.state, card.delivery.done, card.delivery.total, card.delivery.attempt) for card in seen] == [
        ("DOWNLOADING", 5, 38, 1)
    ]
    ended = kit.service.get_delivery(READER, job_id)
    assert ended is not None
    assert (ended.state, ended.done, ended.total) == ("DELIVERED", None, None)


def test_failed_delivery_has_an_error_code(kit: CourierKit) -> None:
    job_id = kit.order()
    kit.yandex.fail("resources", 404)
    kit.run()
    shown = kit.service.get_delivery(READER, job_id)
    assert shown is not None
    assert (shown.state, shown.error_code) == ("FAILED", "not_found")


def test_delivery_waiting_for_a_retry_has_a_code_and_no_old_progress(kit: CourierKit) -> None:
    job_id = kit.order()
    kit.telegram.fail("sendDocument", 429, retry_after=5)
    kit.run()
    assert kit.app.executions(job_id)[0].progress is not None
    shown = kit.service.get_delivery(READER, job_id)
    assert shown is not None
    assert (shown.state, shown.attempt, shown.error_code, shown.done, shown.total) == (
        "QUEUED",
        1,
        "temporary",
        None,
        None,
    )


def test_doubted_delivery_is_marked(kit: CourierKit) -> None:
    job_id = kit.order()
    with kit.courier.engine.begin() as tx:
        tables.record_doubt(tx, job_id)
    shown = kit.service.get_delivery(READER, job_id)
    assert shown is not None
    assert shown.doubted
    assert kit.service.overview().doubted == 1

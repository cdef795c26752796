"""Sends in doubt: users learn of the doubt however a delivery ends, and later deliveries are not affected."""

import threading

import pytest

from apps.common.tests.app_kit import in_background
from apps.common.tests.waiting import wait_until
from apps.courier import formatting
from apps.courier.clients import telegram as telegrams
from apps.courier.tests.courier_kit import DOWNLOADING, FOLDER, READER, STREAMING, CourierKit
from apps.courier.tests.test_delivery import CONTENT, OTHER, received_documents
from apps.courier.tests.test_error_policy import LONG_ENOUGH, documents, texts
from interlock.testing import KitWorker

NAME = "emma.pdf"


def order_in_doubt(kit: CourierKit) -> str:
    """Order a file whose send is in doubt. The file has arrived."""
    job = kit.order()
    kit.telegram.lose_answer("sendDocument")
    kit.run()
    assert (kit.state(job), documents(kit), texts(kit)) == ("QUEUED", [NAME], [])
    return job


def assert_doubt_reported(kit: CourierKit, key: str, reason: str = "") -> None:
    """Check that the user learned that the file may have arrived, and that the doubt is counted."""
    assert texts(kit) == [formatting.render("en", key, name=NAME, reason=reason)]
    assert documents(kit) == [NAME]
    assert len(kit.rows("SELECT * FROM courier_doubts")) == kit.service.overview().doubted == 1


# ---------------------------------------------------------------- at the end of a delivery
def test_failed_delivery_in_doubt_says_so(kit: CourierKit) -> None:
    job = kit.order()
    kit.telegram.fail("sendDocument", 500, early=True, times=2)
    kit.telegram.lose_answer("sendDocument")
    for _ in range(3):
        kit.run_after(LONG_ENOUGH)
    assert kit.state(job) == "FAILED"
    assert_doubt_reported(kit, "failed_maybe", formatting.render_failure("en", "temporary: "))


def test_expired_delivery_in_doubt_says_so(kit: CourierKit) -> None:
    job = order_in_doubt(kit)
    kit.run_after(kit.settings.ttl + 1)
    assert kit.state(job) == "EXPIRED"
    assert_doubt_reported(kit, "expired_maybe")


def test_cancelled_delivery_in_doubt_says_so(kit: CourierKit) -> None:
    job = order_in_doubt(kit)
    kit.service.cancel(READER, job)
    kit.run()
    assert kit.state(job) == "CANCELLED"
    assert_doubt_reported(kit, "cancelled_maybe")


def test_blocked_user_learns_of_the_doubt(kit: CourierKit) -> None:
    job = order_in_doubt(kit)
    kit.add_user(READER, "BLOCKED")
    kit.run_after(LONG_ENOUGH)
    assert kit.state(job) == "FAILED"
    assert_doubt_reported(kit, "failed_maybe", formatting.render_failure("en", "inactive: "))


def test_delivery_without_doubt_mentions_none(kit: CourierKit) -> None:
    kit.service.cancel(READER, kit.order())
    kit.run()
    assert (texts(kit), kit.row_counts()["courier_doubts"]) == ([], 0)


def test_redriven_delivery_keeps_the_doubt_of_the_first(kit: CourierKit) -> None:
    order_in_doubt(kit)
    kit.telegram.fail("sendDocument", 429, retry_after=1, times=2)
    kit.run_after(LONG_ENOUGH)
    kit.run_after(LONG_ENOUGH)
    [failed] = kit.app.jobs(kind="deliver")
    assert failed.state == "FAILED"
    again = kit.app.redrive(failed.id, by="test")
    kit.run_after(LONG_ENOUGH)
    assert (kit.state(again.id), documents(kit)) == ("DELIVERED", [NAME] * 2)
    assert kit.rows("SELECT doubted FROM courier_deliveries") == [(True,)]


def test_doubt_is_announced_once_and_before_the_download(kit: CourierKit) -> None:
    order_in_doubt(kit)
    served = kit.yandex.served
    kit.telegram.fail("sendMessage", 500)
    kit.run_after(LONG_ENOUGH)
    assert (kit.yandex.served, texts(kit)) == (served, [])
    kit.yandex.fail("content", 500)
    kit.run_after(LONG_ENOUGH)
    assert texts(kit)[0] == formatting.render("en", "doubt", name=NAME)
    assert len(texts(kit)) == 2  # and that it failed


# ---------------------------------------------------------------- later deliveries
def test_receipt_of_an_earlier_attempt_is_not_used_for_a_changed_file(kit: CourierKit) -> None:
    """The first worker sends the old bytes and loses its lease. The second has uploaded the new bytes when the first
    answer arrives."""
    file, new = kit.add_file(NAME, CONTENT), b"new" + CONTENT
    job = kit.order(file_id=file)
    answer = kit.telegram.gate("sendDocument")

    def second() -> None:
        assert answer.arrived.wait(20)
        kit.worker._take_over(kit.app.get(job))
        kit.yandex.put(f"{FOLDER}/{NAME}", new)
        body = kit.yandex.gate("content", after=300_000)
        other = threading.Thread(target=KitWorker(kit.app, kit.clock).run_until_idle)
        other.start()
        assert body.arrived.wait(20)
        answer.open()
        wait_for_receipt(kit, job)
        body.open()
        other.join()

    with in_background(second):
        kit.run()
    assert kit.state(job) == "DELIVERED"
    kit.add_user(OTHER)
    kit.order(OTHER, file)
    kit.run()
    assert [document.size for document in received_documents(kit, OTHER)] == [len(new)]


def wait_for_receipt(kit: CourierKit, job: str) -> None:
    """Wait until the first worker's receipt is stored."""
    table = "interlock.receipts" if kit.courier.engine.dialect.name == "postgresql" else "interlock_receipts"
    wait_until(lambda: kit.rows(f"SELECT 1 FROM {table} WHERE name = 'send' AND applied_at IS NOT NULL"))


def test_upload_that_telegram_cannot_use_fails_at_once(kit: CourierKit) -> None:
    """Telegram gives the same error as for a lost copy. There is no copy here, so a retry would not help."""
    job = kit.order()
    kit.telegram.fail("sendDocument", 400, description="Bad Request: there is no document in the request", times=5)
    kit.run()
    assert (kit.transitions(job), kit.app.get(job).attempt) == ([*STREAMING, ("STREAMING", "FAILED")], 1)


def test_endless_pause_of_the_disk_is_limited_to_a_day(kit: CourierKit) -> None:
    job = kit.order()
    kit.yandex.fail("resources", 429, retry_after="1e300")
    kit.run()
    assert kit.state(job) == "QUEUED"
    assert (kit.app.get(job).due_at - kit.clock.now()).total_seconds() <= 86_400


def test_endless_pause_of_telegram_is_limited_to_a_day(kit: CourierKit, monkeypatch: pytest.MonkeyPatch) -> None:
    job = kit.order()
    kit.telegram.fail("sendDocument", 429, retry_after=10**12)
    paused = list[float]()
    monkeypatch.setattr(kit.courier.clients, "pause", paused.append)
    kit.run()
    assert (kit.app.get(job).due_at - kit.clock.now()).total_seconds() <= 86_400
    assert paused == [86_400]


# ---------------------------------------------------------------- notifications
def test_notification_is_sent_when_telegram_is_reachable_again(kit: CourierKit) -> None:
    kit.order()
    kit.yandex.fail("resources", 403)
    kit.telegram.fail("sendMessage", 502, times=20)
    kit.run()
    for _ in range(20):
        kit.run_after(LONG_ENOUGH)
    assert texts(kit) == [
        formatting.render("en", "failed", name=NAME, reason=formatting.render_failure("en", "forbidden: "))
    ]


def test_notification_is_sent_when_the_bot_token_is_fixed(kit: CourierKit) -> None:
    kit.order()
    kit.yandex.fail("resources", 403)
    kit.telegram.fail("sendMessage", 401)
    kit.run()
    kit.run_after(LONG_ENOUGH)
    assert len(texts(kit)) == 1


def test_rejected_notification_fails(kit: CourierKit) -> None:
    kit.order()
    kit.yandex.fail("resources", 403)
    kit.telegram.fail("sendMessage", 400, description="Bad Request: something else")
    kit.run()
    assert [tell.state for tell in kit.app.jobs(kind="notify")] == ["FAILED"]


# ---------------------------------------------------------------- other cases
def test_folder_that_replaces_the_file_is_not_sent(kit: CourierKit) -> None:
    job = kit.order()
    kit.yandex.remove(f"{FOLDER}/{NAME}")
    kit.yandex.mkdir(f"{FOLDER}/{NAME}")
    kit.run()
    assert kit.transitions(job) == [*DOWNLOADING, ("DOWNLOADING", "FAILED")]


def test_attempt_may_take_as_long_as_the_largest_file_on_a_slow_connection(kit: CourierKit) -> None:
    longest = kit.courier.deliver.spec.max_runtime
    assert longest is not None
    assert longest >= 2000 * 2**20 / 100_000


def test_text_of_an_unexpected_error_is_not_stored_or_logged(
    kit: CourierKit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "https://disk.example/of/ann?token=hidden"

    async def broken(*_: object) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(telegrams.PendingSend, "send", broken)
    job = kit.order()
    kit.run()
    assert kit.app.get(job).last_error == "unexpected: RuntimeError"
    assert "RuntimeError" in caplog.text
    assert secret not in caplog.text

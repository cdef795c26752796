"""A delivery from its order to its end: files sent, how often, and recovery after a crash."""

import hashlib

import pytest

from apps.common.tests.app_kit import in_background
from apps.courier import formatting
from apps.courier.service_models import DeliveryView
from apps.courier.tests.courier_kit import CLAIMED, DELIVERED, FOLDER, READER, STREAMING, CourierKit
from apps.courier.tests.fake_telegram import Document
from apps.courier.tests.fake_yandex import GeneratedContent
from apps.courier.tests.test_error_policy import documents, texts
from interlock import Refused
from interlock.testing import Failpoint

OTHER = 8
LEASE = 15.0
CONTENT = b"It is a truth " * 50_000


def crash(kit: CourierKit, point: Failpoint) -> None:
    """Let a worker crash at this point, and its lease expire."""
    kit.crash(point, "deliver", LEASE)


def received_documents(kit: CourierKit, user: int = READER) -> list[Document]:
    return [message.document for message in kit.telegram.chat(user) if message.document]


# ---------------------------------------------------------------- sending
def test_file_arrives_complete_and_the_message_is_its_receipt(kit: CourierKit) -> None:
    job = kit.order(file_id=kit.add_file("Эмма.pdf", CONTENT))
    kit.run()
    (message,) = [message for message in kit.telegram.chat(READER) if message.document]
    assert message.document is not None
    assert (message.document.name, message.document.sha256) == ("Эмма.pdf", hashlib.sha256(CONTENT).hexdigest())
    assert kit.transitions(job) == DELIVERED
    assert kit.courier.deliver.result(job).message_id == message.id
    assert kit.rows("SELECT message_id, doubted FROM courier_deliveries") == [(message.id, False)]
    assert kit.app.verify().ok


def test_second_user_gets_the_file_without_a_transfer(kit: CourierKit) -> None:
    file = kit.add_file("emma.pdf", CONTENT)
    kit.order(file_id=file)
    kit.run()
    served, links = kit.yandex.served, len(kit.yandex.requests_for("download"))
    kit.add_user(OTHER)
    job = kit.order(OTHER, file)
    kit.run()
    assert kit.transitions(job) == DELIVERED
    assert received_documents(kit, OTHER) == received_documents(kit)
    assert (kit.yandex.served, len(kit.yandex.requests_for("download"))) == (served, links)


def test_changed_file_is_sent_in_its_new_version(kit: CourierKit) -> None:
    """This holds even if name and size are the same."""
    file = kit.add_file("emma.pdf", CONTENT)
    kit.order(file_id=file)
    kit.run()
    kit.yandex.put(f"{FOLDER}/emma.pdf", CONTENT[::-1])
    kit.order(READER, file)
    kit.run()
    assert [document.sha256 for document in received_documents(kit)] == [
        hashlib.sha256(each).hexdigest() for each in (CONTENT, CONTENT[::-1])
    ]


def test_file_without_checksum_is_uploaded_each_time(kit: CourierKit) -> None:
    """Another file of the same name and size would look the same."""
    file = kit.add_file("emma.pdf", CONTENT)
    kit.yandex.nodes[f"{FOLDER}/emma.pdf"].md5 = None
    for _ in range(2):
        kit.order(kit.add_user().id, file)
        kit.run()
    assert (documents(kit), kit.yandex.served) == (["emma.pdf"] * 2, 2 * len(CONTENT))


def test_copy_that_telegram_lost_is_uploaded_again_without_costing_a_try(kit: CourierKit) -> None:
    file = kit.add_file("emma.pdf", CONTENT)
    kit.order(file_id=file)
    kit.run()
    kit.telegram.documents.clear()
    job = kit.order(READER, file)
    kit.run()
    assert kit.transitions(job) == [*STREAMING, ("STREAMING", "QUEUED"), *DELIVERED[1:]]
    assert kit.app.get(job).tries_left == 3
    assert (documents(kit), texts(kit)) == (["emma.pdf"] * 2, [])


def test_progress_is_reported_in_bytes(kit: CourierKit) -> None:
    size = 2_000_000
    job = kit.order(file_id=kit.add_file("emma.pdf", GeneratedContent(size)))
    gate, seen = kit.telegram.gate("sendDocument"), list[DeliveryView | None]()

    def look() -> None:
        assert gate.arrived.wait(20)
        kit.worker.heartbeat()
        seen.append(kit.service.get_delivery(READER, job))
        gate.open()

    with in_background(look):
        kit.run()
    assert kit.state(job) == "DELIVERED"
    assert [(shown.state, shown.done, shown.total) for shown in seen if shown] == [("STREAMING", size, size)]


# ---------------------------------------------------------------- crashes
@pytest.mark.parametrize("point", [Failpoint.AFTER_CLAIM, Failpoint.IN_PREPARE])
def test_crash_before_sending_costs_one_try_and_leaves_no_doubt(kit: CourierKit, point: Failpoint) -> None:
    job = kit.order()
    crash(kit, point)
    kit.run()
    assert (kit.state(job), kit.app.get(job).tries_left) == ("DELIVERED", 2)
    assert (documents(kit), texts(kit)) == (["emma.pdf"], [])


def test_crash_after_the_receipt_does_not_send_again(kit: CourierKit) -> None:
    """The next worker finds the receipt, and neither downloads nor sends anything."""
    job = kit.order()
    crash(kit, Failpoint.BEFORE_COMMIT)
    served = kit.yandex.served
    kit.run()
    assert (kit.state(job), kit.app.get(job).attempt) == ("DELIVERED", 2)
    assert (documents(kit), texts(kit), kit.yandex.served) == (["emma.pdf"], [], served)
    assert kit.rows("SELECT doubted FROM courier_deliveries") == [(False,)]


def test_crash_in_the_commit_leaves_one_delivery(kit: CourierKit) -> None:
    job = kit.order()
    crash(kit, Failpoint.IN_COMMIT)
    kit.run()
    assert kit.state(job) == "DELIVERED"
    assert documents(kit) == ["emma.pdf"]
    assert len(kit.rows("SELECT * FROM courier_deliveries")) == 1


def test_three_crashes_fail_the_delivery_and_notify_the_user(kit: CourierKit) -> None:
    """A lost lease costs a try like an error: the third one fails the delivery in any state."""
    job = kit.order()
    for _ in range(3):
        crash(kit, Failpoint.AFTER_CLAIM)
    kit.run()
    failed = kit.app.get(job)
    assert (failed.state, failed.attempt, failed.tries_left) == ("FAILED", 3, 0)
    assert kit.transitions(job)[-2:] == [*CLAIMED[1:], ("CLAIMED", "FAILED")]
    assert texts(kit) == [
        formatting.render("en", "failed", name="emma.pdf", reason=formatting.render_failure("en", failed.last_error))
    ]


def test_stale_worker_is_refused_before_it_sends(kit: CourierKit) -> None:
    """It has uploaded nearly the whole file and aborts, because another worker may be sending it."""
    job = kit.order(file_id=kit.add_file("emma.pdf", CONTENT))
    gate = kit.yandex.gate("content", after=300_000)

    def expire_lease() -> None:
        assert gate.arrived.wait(20)
        kit.worker._take_over(kit.app.get(job))
        gate.open()

    with in_background(expire_lease):
        kit.run()
    kit.run_after(LEASE + 1)
    assert (kit.state(job), kit.app.get(job).attempt) == ("DELIVERED", 2)
    assert (documents(kit), texts(kit)) == (["emma.pdf"], [])
    # Two requests began, and one of them never completed.
    assert sorted(str(asked.status) for asked in kit.telegram.requests_for("sendDocument")) == ["200", "None"]


def test_doubt_stays_stored_even_if_the_second_send_is_rejected(kit: CourierKit) -> None:
    job = kit.order()
    kit.telegram.lose_answer("sendDocument")
    kit.telegram.fail("sendDocument", 429, retry_after=1)
    kit.run()
    kit.run_after(3600)
    kit.run_after(3600)
    assert kit.state(job) == "DELIVERED"
    assert documents(kit) == ["emma.pdf"] * 2
    assert texts(kit) == [formatting.render("en", "doubt", name="emma.pdf")]
    assert kit.rows("SELECT doubted FROM courier_deliveries") == [(True,)]


def test_user_is_warned_of_the_doubt_before_the_second_send(kit: CourierKit) -> None:
    job = kit.order()
    kit.telegram.lose_answer("sendDocument")
    kit.run()
    kit.telegram.fail("sendMessage", 500)
    kit.run_after(3600)
    assert (kit.state(job), documents(kit), texts(kit)) == ("QUEUED", ["emma.pdf"], [])
    kit.run_after(3600)
    assert (kit.state(job), documents(kit)) == ("DELIVERED", ["emma.pdf"] * 2)
    assert [message.document is None for message in kit.telegram.chat(READER)] == [False, True, False]


# ---------------------------------------------------------------- permission
def test_only_active_users_can_order(kit: CourierKit) -> None:
    file = kit.add_file()
    for status in ("BLOCKED", None):
        user = kit.add_user(READER if status else OTHER, status)
        with pytest.raises(Refused):
            kit.order(user.id, file)
    assert (kit.row_counts()["courier_orders"], kit.app.jobs()) == (0, [])


def test_cancelled_delivery_sends_nothing(kit: CourierKit) -> None:
    job = kit.order()
    shown = kit.service.cancel(READER, job)
    kit.run()
    assert shown is not None
    assert (shown.state, kit.transitions(job)) == ("CANCELLED", [(None, "QUEUED"), ("QUEUED", "CANCELLED")])
    assert (documents(kit), kit.yandex.log) == ([], [])

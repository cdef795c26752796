"""A delivery from its order to its end: what is sent, how often, and what is known of it whatever dies in between."""

import hashlib

import pytest

from apps.common.tests.kits import meanwhile
from apps.courier import words
from apps.courier.desk import Shown
from apps.courier.tests.bot_api import Document
from apps.courier.tests.kit import CLAIMED, DELIVERED, FOLDER, READER, STREAMED, Office
from apps.courier.tests.test_taxonomy import documents, told
from apps.courier.tests.yandex import Generated
from interlock import Refused
from interlock.testing import Point

OTHER = 8
LEASE = 15.0
CONTENT = b"It is a truth " * 50_000


def crash(office: Office, point: Point) -> None:
    """A worker dies there, and its lease ends."""
    office.crash(point, "deliver", LEASE)


def arrived(office: Office, user: int = READER) -> list[Document]:
    return [message.document for message in office.telegram.chat(user) if message.document]


# ---------------------------------------------------------------- what is sent
def test_a_file_arrives_whole_and_telegrams_message_is_its_receipt(office: Office) -> None:
    job = office.order(file_id=office.file("Эмма.pdf", CONTENT))
    office.run()
    (message,) = [message for message in office.telegram.chat(READER) if message.document]
    assert message.document is not None
    assert (message.document.name, message.document.sha256) == ("Эмма.pdf", hashlib.sha256(CONTENT).hexdigest())
    assert office.path(job) == DELIVERED
    assert office.courier.deliver.result(job).message_id == message.id
    assert office.rows("SELECT message_id, doubted FROM courier_deliveries") == [(message.id, False)]
    assert office.app.verify().ok


def test_the_second_user_gets_the_file_without_a_transfer(office: Office) -> None:
    file = office.file("emma.pdf", CONTENT)
    office.order(file_id=file)
    office.run()
    served, links = office.yandex.served, len(office.yandex.asked("download"))
    office.user(OTHER)
    job = office.order(OTHER, file)
    office.run()
    assert office.path(job) == DELIVERED
    assert arrived(office, OTHER) == arrived(office)
    assert (office.yandex.served, len(office.yandex.asked("download"))) == (served, links)


def test_a_file_that_has_changed_since_is_sent_as_it_is_now(office: Office) -> None:
    """Also if it has the same name and the same size."""
    file = office.file("emma.pdf", CONTENT)
    office.order(file_id=file)
    office.run()
    office.yandex.put(f"{FOLDER}/emma.pdf", CONTENT[::-1])
    office.order(READER, file)
    office.run()
    assert [document.sha256 for document in arrived(office)] == [hashlib.sha256(each).hexdigest() for each in (CONTENT, CONTENT[::-1])]


def test_a_file_without_a_checksum_is_streamed_each_time(office: Office) -> None:
    """Another one of its name and size could not be told from it."""
    file = office.file("emma.pdf", CONTENT)
    office.yandex.nodes[f"{FOLDER}/emma.pdf"].md5 = None
    for _ in range(2):
        office.order(office.user().id, file)
        office.run()
    assert (documents(office), office.yandex.served) == (["emma.pdf"] * 2, 2 * len(CONTENT))


def test_a_copy_that_telegram_has_lost_is_streamed_again_and_costs_no_try(office: Office) -> None:
    file = office.file("emma.pdf", CONTENT)
    office.order(file_id=file)
    office.run()
    office.telegram.documents.clear()
    job = office.order(READER, file)
    office.run()
    assert office.path(job) == [*STREAMED, ("STREAMING", "QUEUED"), *DELIVERED[1:]]
    assert office.app.get(job).tries_left == 3
    assert (documents(office), told(office)) == (["emma.pdf"] * 2, [])


def test_progress_is_told_in_bytes(office: Office) -> None:
    size = 2_000_000
    job = office.order(file_id=office.file("emma.pdf", Generated(size)))
    gate, seen = office.telegram.gate("sendDocument"), list[Shown | None]()

    def look() -> None:
        assert gate.arrived.wait(20)
        office.worker.beat()
        seen.append(office.desk.shown(READER, job))
        gate.open()

    with meanwhile(look):
        office.run()
    assert office.state(job) == "DELIVERED"
    assert [(shown.state, shown.done, shown.total) for shown in seen if shown] == [("STREAMING", size, size)]


# ---------------------------------------------------------------- what dies in between
@pytest.mark.parametrize("point", [Point.AFTER_CLAIM, Point.IN_PREPARE])
def test_a_worker_that_dies_before_it_sends_costs_one_try_and_no_doubt(office: Office, point: Point) -> None:
    job = office.order()
    crash(office, point)
    office.run()
    assert (office.state(job), office.app.get(job).tries_left) == ("DELIVERED", 2)
    assert (documents(office), told(office)) == (["emma.pdf"], [])


def test_a_worker_that_dies_after_the_receipt_has_sent_it_once_and_for_all(office: Office) -> None:
    """The next one finds the receipt, and neither downloads nor sends anything."""
    job = office.order()
    crash(office, Point.BEFORE_COMMIT)
    served = office.yandex.served
    office.run()
    assert (office.state(job), office.app.get(job).attempt) == ("DELIVERED", 2)
    assert (documents(office), told(office), office.yandex.served) == (["emma.pdf"], [], served)
    assert office.rows("SELECT doubted FROM courier_deliveries") == [(False,)]


def test_a_worker_that_dies_in_its_commit_leaves_one_delivery(office: Office) -> None:
    job = office.order()
    crash(office, Point.IN_COMMIT)
    office.run()
    assert office.state(job) == "DELIVERED"
    assert documents(office) == ["emma.pdf"]
    assert len(office.rows("SELECT * FROM courier_deliveries")) == 1


def test_workers_that_die_three_times_end_the_delivery_and_its_user_is_told(office: Office) -> None:
    """A lost lease costs a try, as an error does: after the third it has failed, from whatever state it was lost in."""
    job = office.order()
    for _ in range(3):
        crash(office, Point.AFTER_CLAIM)
    office.run()
    failed = office.app.get(job)
    assert (failed.state, failed.attempt, failed.tries_left) == ("FAILED", 3, 0)
    assert office.path(job)[-2:] == [*CLAIMED[1:], ("CLAIMED", "FAILED")]
    assert told(office) == [words.say("en", "failed", name="emma.pdf", reason=words.failure("en", failed.last_error))]


def test_a_worker_that_lost_its_lease_is_refused_before_it_sends(office: Office) -> None:
    """It has nearly all of the file at Telegram's door, and breaks off there, since another may be sending it."""
    job = office.order(file_id=office.file("emma.pdf", CONTENT))
    gate = office.yandex.gate("content", after=300_000)

    def rob() -> None:
        assert gate.arrived.wait(20)
        office.worker._rob(office.app.get(job))
        gate.open()

    with meanwhile(rob):
        office.run()
    office.later(LEASE + 1)
    assert (office.state(job), office.app.get(job).attempt) == ("DELIVERED", 2)
    assert (documents(office), told(office)) == (["emma.pdf"], [])
    # Two requests began, and one of them has no end.
    assert sorted(str(asked.status) for asked in office.telegram.asked("sendDocument")) == ["200", "None"]


def test_a_doubt_stays_written_though_the_second_send_is_surely_refused(office: Office) -> None:
    job = office.order()
    office.telegram.lose("sendDocument")
    office.telegram.fail("sendDocument", 429, retry_after=1)
    office.run()
    office.later(3600)
    office.later(3600)
    assert office.state(job) == "DELIVERED"
    assert documents(office) == ["emma.pdf"] * 2
    assert told(office) == [words.say("en", "doubt", name="emma.pdf")]
    assert office.rows("SELECT doubted FROM courier_deliveries") == [(True,)]


def test_nothing_is_sent_again_before_its_user_was_told_of_the_doubt(office: Office) -> None:
    job = office.order()
    office.telegram.lose("sendDocument")
    office.run()
    office.telegram.fail("sendMessage", 500)
    office.later(3600)
    assert (office.state(job), documents(office), told(office)) == ("QUEUED", ["emma.pdf"], [])
    office.later(3600)
    assert (office.state(job), documents(office)) == ("DELIVERED", ["emma.pdf"] * 2)
    assert [message.document is None for message in office.telegram.chat(READER)] == [False, True, False]


# ---------------------------------------------------------------- who may
def test_nobody_orders_who_is_not_active(office: Office) -> None:
    file = office.file()
    for status in ("BLOCKED", None):
        user = office.user(READER if status else OTHER, status)
        with pytest.raises(Refused):
            office.order(user.id, file)
    assert (office.stored()["courier_orders"], office.app.jobs()) == (0, [])


def test_what_waits_is_cancelled_at_once_and_nothing_is_sent(office: Office) -> None:
    job = office.order()
    shown = office.desk.cancel(READER, job)
    office.run()
    assert shown is not None
    assert (shown.state, office.path(job)) == ("CANCELLED", [(None, "QUEUED"), ("QUEUED", "CANCELLED")])
    assert (documents(office), office.yandex.log) == ([], [])

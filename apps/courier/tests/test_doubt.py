"""What nobody can know is told, however a delivery ends; and what went wrong once spoils nothing that comes after."""

import threading

import pytest

from apps.common.tests.kits import meanwhile
from apps.common.tests.waiting import eventually
from apps.courier import telegram as telegrams
from apps.courier import words
from apps.courier.tests.kit import BEGUN, FOLDER, READER, STREAMED, Office
from apps.courier.tests.test_delivery import CONTENT, OTHER, arrived
from apps.courier.tests.test_taxonomy import ENOUGH, documents, told
from interlock.testing import KitWorker

NAME = "emma.pdf"


def in_doubt(office: Office) -> str:
    """A delivery that waits, of which nobody knows whether its file has arrived. It has."""
    job = office.order()
    office.telegram.lose("sendDocument")
    office.run()
    assert (office.state(job), documents(office), told(office)) == ("QUEUED", [NAME], [])
    return job


def maybe(office: Office, key: str, reason: str = "") -> None:
    """The user was told that the file may have arrived all the same, and the doubt is counted."""
    assert told(office) == [words.say("en", key, name=NAME, reason=reason)]
    assert documents(office) == [NAME]
    assert len(office.rows("SELECT * FROM courier_doubts")) == office.desk.overview().doubted == 1


# ---------------------------------------------------------------- however it ends
def test_a_delivery_that_fails_in_doubt_says_so(office: Office) -> None:
    job = office.order()
    office.telegram.fail("sendDocument", 500, early=True, times=2)
    office.telegram.lose("sendDocument")
    for _ in range(3):
        office.later(ENOUGH)
    assert office.state(job) == "FAILED"
    maybe(office, "failed_maybe", words.failure("en", "trouble: "))


def test_a_delivery_that_expires_in_doubt_says_so(office: Office) -> None:
    job = in_doubt(office)
    office.later(office.settings.ttl + 1)
    assert office.state(job) == "EXPIRED"
    maybe(office, "expired_maybe")


def test_a_delivery_that_is_cancelled_in_doubt_says_so(office: Office) -> None:
    job = in_doubt(office)
    office.desk.cancel(READER, job)
    office.run()
    assert office.state(job) == "CANCELLED"
    maybe(office, "cancelled_maybe")


def test_a_user_who_is_shut_out_while_nobody_knows_is_told_so(office: Office) -> None:
    job = in_doubt(office)
    office.user(READER, "BLOCKED")
    office.later(ENOUGH)
    assert office.state(job) == "FAILED"
    maybe(office, "failed_maybe", words.failure("en", "inactive: "))


def test_a_delivery_without_doubt_says_nothing_of_one(office: Office) -> None:
    office.desk.cancel(READER, office.order())
    office.run()
    assert (told(office), office.stored()["courier_doubts"]) == ([], 0)


def test_what_is_driven_again_goes_on_with_the_doubt_of_the_first(office: Office) -> None:
    in_doubt(office)
    office.telegram.fail("sendDocument", 429, retry_after=1, times=2)
    office.later(ENOUGH)
    office.later(ENOUGH)
    [failed] = office.app.jobs(kind="deliver")
    assert failed.state == "FAILED"
    again = office.app.redrive(failed.id, by="test")
    office.later(ENOUGH)
    assert (office.state(again.id), documents(office)) == ("DELIVERED", [NAME] * 2)
    assert office.rows("SELECT doubted FROM courier_deliveries") == [(True,)]


def test_a_doubt_is_told_before_anything_is_downloaded_and_once(office: Office) -> None:
    in_doubt(office)
    served = office.yandex.served
    office.telegram.fail("sendMessage", 500)
    office.later(ENOUGH)
    assert (office.yandex.served, told(office)) == (served, [])
    office.yandex.fail("content", 500)
    office.later(ENOUGH)
    assert told(office)[0] == words.say("en", "doubt", name=NAME)
    assert len(told(office)) == 2  # and that it failed


# ---------------------------------------------------------------- what must not spoil the next
def test_a_receipt_of_an_earlier_attempt_says_nothing_of_the_file_as_it_is_now(office: Office) -> None:
    """The first worker sends the old bytes and loses its lease; the second has the new ones at the door when the first one's answer comes."""
    file, new = office.file(NAME, CONTENT), b"new" + CONTENT
    job = office.order(file_id=file)
    answer = office.telegram.gate("sendDocument")

    def second() -> None:
        assert answer.arrived.wait(20)
        office.worker._rob(office.app.get(job))
        office.yandex.put(f"{FOLDER}/{NAME}", new)
        body = office.yandex.gate("content", after=300_000)
        other = threading.Thread(target=KitWorker(office.app, office.clock).run_until_idle)
        other.start()
        assert body.arrived.wait(20)
        answer.open()
        first_known(office, job)
        body.open()
        other.join()

    with meanwhile(second):
        office.run()
    assert office.state(job) == "DELIVERED"
    office.user(OTHER)
    office.order(OTHER, file)
    office.run()
    assert [document.size for document in arrived(office, OTHER)] == [len(new)]


def first_known(office: Office, job: str) -> None:
    """Wait until the first worker's receipt is written."""
    table = "interlock.receipts" if office.courier.engine.dialect.name == "postgresql" else "interlock_receipts"
    eventually(lambda: office.rows(f"SELECT 1 FROM {table} WHERE name = 'send' AND applied_at IS NOT NULL"))


def test_an_upload_that_telegram_cannot_use_fails_at_once(office: Office) -> None:
    """Telegram says the same of it as of a copy that it has lost; here there was none, so nothing would be mended by another try."""
    job = office.order()
    office.telegram.fail("sendDocument", 400, description="Bad Request: there is no document in the request", times=5)
    office.run()
    assert (office.path(job), office.app.get(job).attempt) == ([*STREAMED, ("STREAMING", "FAILED")], 1)


@pytest.mark.parametrize("seconds", ["1e300", "1000000000000", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_pause_without_an_end_is_cut_to_a_day(office: Office, seconds: str) -> None:
    job = office.order()
    office.yandex.fail("resources", 429, retry_after=seconds)
    office.run()
    assert office.state(job) == "QUEUED"
    assert (office.app.get(job).due_at - office.clock.now()).total_seconds() <= 86_400


def test_telegrams_own_pause_without_an_end_is_cut_to_a_day(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    job = office.order()
    office.telegram.fail("sendDocument", 429, retry_after=10**12)
    paused = list[float]()
    monkeypatch.setattr(office.courier.outside, "pause", paused.append)
    office.run()
    assert (office.app.get(job).due_at - office.clock.now()).total_seconds() <= 86_400
    assert paused == [86_400]


# ---------------------------------------------------------------- telling
def test_whoever_could_not_be_told_is_told_when_telegram_is_back(office: Office) -> None:
    office.order()
    office.yandex.fail("resources", 403)
    office.telegram.fail("sendMessage", 502, times=20)
    office.run()
    for _ in range(20):
        office.later(ENOUGH)
    assert told(office) == [words.say("en", "failed", name=NAME, reason=words.failure("en", "forbidden: "))]


def test_whoever_could_not_be_told_is_told_when_the_bots_token_is_mended(office: Office) -> None:
    office.order()
    office.yandex.fail("resources", 403)
    office.telegram.fail("sendMessage", 401)
    office.run()
    office.later(ENOUGH)
    assert len(told(office)) == 1


def test_a_sentence_that_telegram_refuses_counts_as_untold(office: Office) -> None:
    office.order()
    office.yandex.fail("resources", 403)
    office.telegram.fail("sendMessage", 400, description="Bad Request: something else")
    office.run()
    assert [tell.state for tell in office.app.jobs(kind="tell")] == ["FAILED"]


# ---------------------------------------------------------------- and the rest
def test_a_folder_in_the_place_of_the_file_is_not_sent(office: Office) -> None:
    job = office.order()
    office.yandex.remove(f"{FOLDER}/{NAME}")
    office.yandex.mkdir(f"{FOLDER}/{NAME}")
    office.run()
    assert office.path(job) == [*BEGUN, ("DOWNLOADING", "FAILED")]


def test_an_attempt_may_take_as_long_as_the_largest_file_on_a_slow_line(office: Office) -> None:
    longest = office.courier.deliver.declaration.max_runtime
    assert longest is not None
    assert longest >= 2000 * 2**20 / 100_000


def test_an_error_that_nobody_foresaw_keeps_its_words_to_itself(office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    secret = "https://disk.example/of/ann?token=hidden"

    async def broken(*_: object) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(telegrams.Parcel, "hand_over", broken)
    job = office.order()
    office.run()
    assert office.app.get(job).last_error == "unexpected: RuntimeError"
    assert "RuntimeError" in caplog.text
    assert secret not in caplog.text

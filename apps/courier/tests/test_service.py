"""The desk: who may do what, and that one click is one delivery."""

import hashlib
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

import pytest

from apps.courier import tables
from apps.courier.desk import Decision, Moment, Person, User
from apps.courier.errors import CourierError, Refusal
from apps.courier.tests.kit import ADMIN, QUEUED, READER, STRANGER, Office
from interlock import Refused

T = TypeVar("T")
ANN = Person(READER, "Ann", "en")


def at_once(count: int, do: Callable[[int], T]) -> list[T | Exception]:
    """Do it so many times in as many threads that set out together."""
    ready = threading.Barrier(count)

    def one(number: int) -> T | Exception:
        ready.wait()
        try:
            return do(number)
        except Exception as error:  # noqa: BLE001 - told to the test
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


# ---------------------------------------------------------------- people
def test_whoever_asks_is_pending_and_known_from_then_on(office: Office) -> None:
    at = office.moment()
    user, new = office.desk.register(ANN, at)
    assert (user, new) == (User(READER, "Ann", "en", "PENDING", at.at), True)
    assert office.desk.register(ANN, office.moment()) == (user, False)
    assert office.desk.user(READER) == user
    assert office.desk.users() == [user]


def test_name_and_language_follow_the_person_and_nothing_else_does(office: Office) -> None:
    first = office.user(READER, "ACTIVE")
    office.clock.advance(60)
    again, new = office.desk.register(Person(READER, "Anna", "ru"), office.moment())
    assert not new
    assert again == User(READER, "Anna", "ru", "ACTIVE", first.asked_at)
    assert office.desk.register(Person(READER, "Anna", None), office.moment())[0].language == ""


def test_an_administrator_is_let_in_by_themselves(office: Office) -> None:
    user, new = office.desk.register(Person(ADMIN, "Root", "ru"), office.moment())
    assert (user.status, new) == ("ACTIVE", True)
    assert office.rows("SELECT decided_by FROM courier_users") == [(ADMIN,)]


def test_an_old_start_of_an_administrator_does_not_undo_a_later_block(office: Office) -> None:
    old = office.moment()
    office.desk.register(Person(ADMIN, "Root"), old)
    office.desk.decide(ADMIN, "BLOCKED", by=ADMIN, at=office.moment())
    assert office.desk.register(Person(ADMIN, "Root"), old)[0].status == "BLOCKED"
    assert office.desk.register(Person(ADMIN, "Root"), office.moment())[0].status == "ACTIVE"


def test_only_administrators_decide(office: Office) -> None:
    office.user(READER, None)
    with pytest.raises(Refusal, match="Only administrators") as refused:
        office.desk.decide(READER, "ACTIVE", by=READER, at=office.moment())
    assert refused.value.code == "forbidden"
    assert office.desk.user(READER) == office.desk.users()[0]
    assert office.desk.users()[0].status == "PENDING"


def test_a_status_that_cannot_be_decided_changes_nothing(office: Office) -> None:
    office.user(READER, "ACTIVE")
    with pytest.raises(CourierError, match="ACTIVE or BLOCKED"):
        office.desk.decide(READER, "PENDING", by=ADMIN, at=office.moment())  # type: ignore[arg-type]
    assert office.desk.users()[0].status == "ACTIVE"


@pytest.mark.parametrize("id", [STRANGER, 0, -5, 2**63, 2**80])
def test_a_stranger_is_nobody_to_decide_about(office: Office, id: int) -> None:
    assert office.desk.user(id) is None
    assert office.desk.decide(id, "ACTIVE", by=ADMIN, at=office.moment()) is None
    assert office.desk.users() == []


def test_users_are_listed_as_they_came(office: Office) -> None:
    for id in (9, 3, 5):
        office.user(id, None)
        office.clock.advance(1)
    assert [user.id for user in office.desk.users()] == [9, 3, 5]


def test_replayed_and_shuffled_decisions_end_as_they_were_meant(office: Office) -> None:
    office.user(READER, None)
    chance, begin = Random(11), office.clock.now()
    # Several within one second, and ids that began anew after a quiet week.
    moments = [Moment(begin + timedelta(seconds=n // 3), 500 + n) for n in range(9)] + [Moment(begin + timedelta(days=8), 4)]
    for round in range(30):
        said = [Moment(each.at + timedelta(days=30 * round), each.update_id) for each in moments]
        told: list[tuple[Decision, Moment]] = [(chance.choice(("ACTIVE", "BLOCKED")), each) for each in said]
        shuffled = told * 2
        chance.shuffle(shuffled)
        for status, at in shuffled:
            office.desk.decide(READER, status, by=ADMIN, at=at)
        user = office.desk.user(READER)
        assert user is not None
        assert user.status == told[-1][0]


def test_of_two_decisions_at_once_the_later_stands(office: Office) -> None:
    office.user(READER, None)
    said: list[tuple[Decision, Moment]] = [(status, office.moment()) for status in ("ACTIVE", "BLOCKED") * 8]
    Random(3).shuffle(said)
    at_once(len(said), lambda n: office.desk.decide(READER, said[n][0], by=ADMIN, at=said[n][1]))
    assert office.desk.users()[0].status == "BLOCKED"


# ---------------------------------------------------------------- orders
def test_a_click_makes_a_delivery_and_shows_it(office: Office) -> None:
    file_id = office.file("emma.pdf")
    shown, created = office.desk.order(office.user().id, file_id, "n1")
    assert created
    assert (shown.file_id, shown.file_name, shown.state, shown.attempt, shown.tries) == (file_id, "emma.pdf", "QUEUED", 0, 3)
    assert (shown.done, shown.total, shown.error_code, shown.doubted) == (None, None, None, False)
    assert office.path(shown.job_id) == QUEUED
    job = office.app.get(shown.job_id)
    assert job.idempotency_key == hashlib.sha256(f"{READER}:{file_id}:n1".encode()).hexdigest()
    assert job.expires_at == job.created_at + timedelta(seconds=office.settings.ttl)
    assert office.desk.shown(READER, shown.job_id) == shown


def test_a_second_click_shows_the_first_job(office: Office) -> None:
    user_id, file_id = office.user().id, office.file()
    first = office.ordered(user_id, file_id, "n1")
    before = office.stored()
    assert office.desk.order(user_id, file_id, "n1") == (first, False)
    assert office.stored() == before


def test_a_click_that_comes_again_after_the_end_shows_that_end(office: Office) -> None:
    user_id, file_id = office.user().id, office.file()
    first = office.ordered(user_id, file_id, "n1")
    office.run()
    assert office.state(first.job_id) == "DELIVERED"
    office.later(400 * 86400)
    before = office.stored()
    shown, created = office.desk.order(user_id, file_id, "n1")
    assert (shown.job_id, shown.state, created) == (first.job_id, "DELIVERED", False)
    office.run()
    assert office.stored() == before


def test_another_nonce_user_or_file_is_another_delivery(office: Office) -> None:
    office.user(READER), office.user(8, name="Bob")
    a, b = office.file("a.pdf"), office.file("b.pdf")
    made = [office.desk.order(*click) for click in ((READER, a, "n"), (READER, a, "m"), (8, a, "n"), (READER, b, "n"))]
    assert all(created for _, created in made)
    assert len({shown.job_id for shown, _ in made}) == 4


def test_thirty_two_identical_clicks_at_once_are_one_delivery(office: Office) -> None:
    user_id, file_id = office.user().id, office.file()
    answers = at_once(32, lambda _: office.desk.order(user_id, file_id, "n1"))
    shown = [answer for answer in answers if isinstance(answer, tuple)]
    assert len(shown) == 32, answers
    assert len({each.job_id for each, _ in shown}) == 1
    assert [created for _, created in shown].count(True) == 1
    assert office.rows("SELECT count(*) FROM courier_orders") == [(1,)]


@pytest.mark.parametrize("status", [None, "BLOCKED", "stranger"])
def test_whoever_is_not_active_gets_nothing(office: Office, status: Any) -> None:
    if status != "stranger":
        office.user(READER, status)
    file_id = office.file()
    before = office.stored()
    with pytest.raises(Refused):
        office.desk.order(READER, file_id, "n1")
    assert office.stored() == before


def test_a_user_who_was_blocked_is_not_shown_what_an_old_click_made(office: Office) -> None:
    user_id, file_id = office.user().id, office.file()
    office.ordered(user_id, file_id, "n1")
    office.desk.decide(user_id, "BLOCKED", by=ADMIN, at=office.moment())
    with pytest.raises(Refused):
        office.desk.order(user_id, file_id, "n1")


def test_what_is_not_in_the_library_cannot_be_ordered(office: Office) -> None:
    office.user()
    gone, outside, folder = office.file("gone.pdf"), office.file("diary.txt"), office.file("Arts")
    office.write("UPDATE courier_files SET gone = TRUE WHERE id = :id", id=gone)
    office.write("UPDATE courier_files SET path = 'disk:/Library2/diary.txt' WHERE id = :id", id=outside)
    office.write("UPDATE courier_files SET is_folder = TRUE WHERE id = :id", id=folder)
    before = office.stored()
    for id in (gone, outside, folder, 404, 0, -1, 2**31, 2**70):
        with pytest.raises(Refusal, match="no such file"):
            office.desk.order(READER, id, "n1")
    assert office.stored() == before


def test_no_order_is_accepted_once_a_block_is_decided(office: Office) -> None:
    file_id = office.file()
    for round in range(5):
        user_id = 100 + round
        office.user(user_id)
        decided, late = threading.Event(), list[object]()
        block = office.moment()

        def act(n: int, user_id: int = user_id, block: Moment = block, decided: threading.Event = decided, late: list[object] = late) -> None:
            if n == 0:
                office.desk.decide(user_id, "BLOCKED", by=ADMIN, at=block)
                decided.set()
                return
            for click in itertools.count():
                # Not for ever: on SQLite nobody has a right to be next, and the decision could wait for long.
                was_decided = decided.is_set() or (click >= 10 and decided.wait(60))
                try:
                    office.desk.order(user_id, file_id, f"{n} {click}")
                except Refused:
                    return
                if was_decided:
                    late.append((n, click))
                    return

        assert [each for each in at_once(4, act) if each is not None] == []
        assert late == []


def test_an_order_that_has_asked_whether_it_may_is_stored_before_the_block(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    user_id, file_id = office.user().id, office.file()
    story, asked, real = list[str](), threading.Event(), tables.status_of

    def slow(tx: Any, id: int) -> str | None:
        found = real(tx, id)
        asked.set()
        # Long enough for a block that need not wait to overtake us.
        blocked.wait(0.5)
        return found

    blocked = threading.Event()
    monkeypatch.setattr(tables, "status_of", slow)

    def act(n: int) -> None:
        if n == 0:
            office.desk.order(user_id, file_id, "n1")
            story.append("ordered")
            return
        asked.wait(10)
        office.desk.decide(user_id, "BLOCKED", by=ADMIN, at=office.moment())
        blocked.set()
        story.append("blocked")

    assert at_once(2, act) == [None, None]
    (job,), = office.rows("SELECT count(*) FROM courier_orders")
    assert (job, blocked.is_set(), sorted(story)) == (1, True, ["blocked", "ordered"])

"""The service: permissions, and one delivery per click."""

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
from apps.courier.errors import CourierError, PermanentError
from apps.courier.service_models import Decision, Person, UpdateTime, User
from apps.courier.tests.courier_kit import ADMIN, QUEUED, READER, STRANGER, CourierKit
from interlock import Refused

T = TypeVar("T")
ANN = Person(READER, "Ann", "en")


def at_once(count: int, do: Callable[[int], T]) -> list[T | Exception]:
    """Call a function in this many threads at the same time."""
    ready = threading.Barrier(count)

    def one(number: int) -> T | Exception:
        ready.wait()
        try:
            return do(number)
        except Exception as error:  # noqa: BLE001 - told to the test
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


# ---------------------------------------------------------------- users
def test_new_user_is_pending_and_stored(kit: CourierKit) -> None:
    at = kit.update_time()
    user, new = kit.service.register(ANN, at)
    assert (user, new) == (User(READER, "Ann", "en", "PENDING", at.at), True)
    assert kit.service.register(ANN, kit.update_time()) == (user, False)
    assert kit.service.user(READER) == user
    assert kit.service.users() == [user]


def test_name_and_language_are_updated_and_nothing_else(kit: CourierKit) -> None:
    first = kit.add_user(READER, "ACTIVE")
    kit.clock.advance(60)
    again, new = kit.service.register(Person(READER, "Anna", "ru"), kit.update_time())
    assert not new
    assert again == User(READER, "Anna", "ru", "ACTIVE", first.asked_at)
    assert kit.service.register(Person(READER, "Anna", None), kit.update_time())[0].language == ""


def test_administrator_is_active_at_once(kit: CourierKit) -> None:
    user, new = kit.service.register(Person(ADMIN, "Root", "ru"), kit.update_time())
    assert (user.status, new) == ("ACTIVE", True)
    assert kit.rows("SELECT decided_by FROM courier_users") == [(ADMIN,)]


def test_old_start_of_an_administrator_does_not_undo_a_later_block(kit: CourierKit) -> None:
    old = kit.update_time()
    kit.service.register(Person(ADMIN, "Root"), old)
    kit.service.decide(ADMIN, "BLOCKED", by=ADMIN, at=kit.update_time())
    assert kit.service.register(Person(ADMIN, "Root"), old)[0].status == "BLOCKED"
    assert kit.service.register(Person(ADMIN, "Root"), kit.update_time())[0].status == "ACTIVE"


def test_only_administrators_decide(kit: CourierKit) -> None:
    kit.add_user(READER, None)
    with pytest.raises(PermanentError, match="Only administrators") as refused:
        kit.service.decide(READER, "ACTIVE", by=READER, at=kit.update_time())
    assert refused.value.code == "forbidden"
    assert kit.service.user(READER) == kit.service.users()[0]
    assert kit.service.users()[0].status == "PENDING"


def test_invalid_decision_changes_nothing(kit: CourierKit) -> None:
    kit.add_user(READER, "ACTIVE")
    with pytest.raises(CourierError, match="ACTIVE or BLOCKED"):
        kit.service.decide(READER, "PENDING", by=ADMIN, at=kit.update_time())  # type: ignore[arg-type]
    assert kit.service.users()[0].status == "ACTIVE"


def test_unknown_user_cannot_be_decided(kit: CourierKit) -> None:
    for id in (STRANGER, 0, -5, 2**63, 2**80):
        assert kit.service.user(id) is None
        assert kit.service.decide(id, "ACTIVE", by=ADMIN, at=kit.update_time()) is None
    assert kit.service.users() == []


def test_users_are_listed_in_order_of_their_requests(kit: CourierKit) -> None:
    for id in (9, 3, 5):
        kit.add_user(id, None)
        kit.clock.advance(1)
    assert [user.id for user in kit.service.users()] == [9, 3, 5]


def test_replayed_and_shuffled_decisions_end_in_the_intended_state(kit: CourierKit) -> None:
    kit.add_user(READER, None)
    chance, begin = Random(11), kit.clock.now()
    # Several within one second, and IDs that restart after a quiet week.
    moments = [UpdateTime(begin + timedelta(seconds=n // 3), 500 + n) for n in range(9)] + [
        UpdateTime(begin + timedelta(days=8), 4)
    ]
    for round in range(30):
        said = [UpdateTime(each.at + timedelta(days=30 * round), each.update_id) for each in moments]
        told: list[tuple[Decision, UpdateTime]] = [(chance.choice(("ACTIVE", "BLOCKED")), each) for each in said]
        shuffled = told * 2
        chance.shuffle(shuffled)
        for status, at in shuffled:
            kit.service.decide(READER, status, by=ADMIN, at=at)
        user = kit.service.user(READER)
        assert user is not None
        assert user.status == told[-1][0]


def test_later_of_two_concurrent_decisions_wins(kit: CourierKit) -> None:
    kit.add_user(READER, None)
    said: list[tuple[Decision, UpdateTime]] = [(status, kit.update_time()) for status in ("ACTIVE", "BLOCKED") * 8]
    Random(3).shuffle(said)
    at_once(len(said), lambda n: kit.service.decide(READER, said[n][0], by=ADMIN, at=said[n][1]))
    assert kit.service.users()[0].status == "BLOCKED"


# ---------------------------------------------------------------- orders
def test_click_creates_and_returns_a_delivery(kit: CourierKit) -> None:
    file_id = kit.add_file("emma.pdf")
    shown, created = kit.service.order(kit.add_user().id, file_id, "n1")
    assert created
    assert (shown.file_id, shown.file_name, shown.state, shown.attempt, shown.tries) == (
        file_id,
        "emma.pdf",
        "QUEUED",
        0,
        3,
    )
    assert (shown.done, shown.total, shown.error_code, shown.doubted) == (None, None, None, False)
    assert kit.transitions(shown.job_id) == QUEUED
    job = kit.app.get(shown.job_id)
    assert job.idempotency_key == hashlib.sha256(f"{READER}:{file_id}:n1".encode()).hexdigest()
    assert job.expires_at == job.created_at + timedelta(seconds=kit.settings.ttl)
    assert kit.service.get_delivery(READER, shown.job_id) == shown


def test_second_click_returns_the_first_job(kit: CourierKit) -> None:
    user_id, file_id = kit.add_user().id, kit.add_file()
    first = kit.order_view(user_id, file_id, "n1")
    before = kit.row_counts()
    assert kit.service.order(user_id, file_id, "n1") == (first, False)
    assert kit.row_counts() == before


def test_repeated_click_after_the_end_returns_the_ended_delivery(kit: CourierKit) -> None:
    user_id, file_id = kit.add_user().id, kit.add_file()
    first = kit.order_view(user_id, file_id, "n1")
    kit.run()
    assert kit.state(first.job_id) == "DELIVERED"
    kit.run_after(400 * 86400)
    before = kit.row_counts()
    shown, created = kit.service.order(user_id, file_id, "n1")
    assert (shown.job_id, shown.state, created) == (first.job_id, "DELIVERED", False)
    kit.run()
    assert kit.row_counts() == before


def test_another_nonce_user_or_file_is_another_delivery(kit: CourierKit) -> None:
    kit.add_user(READER), kit.add_user(8, name="Bob")
    a, b = kit.add_file("a.pdf"), kit.add_file("b.pdf")
    made = [kit.service.order(*click) for click in ((READER, a, "n"), (READER, a, "m"), (8, a, "n"), (READER, b, "n"))]
    assert all(created for _, created in made)
    assert len({shown.job_id for shown, _ in made}) == 4


def test_thirty_two_concurrent_identical_clicks_are_one_delivery(kit: CourierKit) -> None:
    user_id, file_id = kit.add_user().id, kit.add_file()
    answers = at_once(32, lambda _: kit.service.order(user_id, file_id, "n1"))
    shown = [answer for answer in answers if isinstance(answer, tuple)]
    assert len(shown) == 32, answers
    assert len({each.job_id for each, _ in shown}) == 1
    assert [created for _, created in shown].count(True) == 1
    assert kit.rows("SELECT count(*) FROM courier_orders") == [(1,)]


@pytest.mark.parametrize("status", [None, "BLOCKED", "stranger"])
def test_inactive_user_cannot_order(kit: CourierKit, status: Any) -> None:
    if status != "stranger":
        kit.add_user(READER, status)
    file_id = kit.add_file()
    before = kit.row_counts()
    with pytest.raises(Refused):
        kit.service.order(READER, file_id, "n1")
    assert kit.row_counts() == before


def test_blocked_user_cannot_see_an_earlier_order(kit: CourierKit) -> None:
    user_id, file_id = kit.add_user().id, kit.add_file()
    kit.order_view(user_id, file_id, "n1")
    kit.service.decide(user_id, "BLOCKED", by=ADMIN, at=kit.update_time())
    with pytest.raises(Refused):
        kit.service.order(user_id, file_id, "n1")


def test_only_files_of_the_library_can_be_ordered(kit: CourierKit) -> None:
    kit.add_user()
    gone, outside, folder = kit.add_file("gone.pdf"), kit.add_file("diary.txt"), kit.add_file("Arts")
    kit.write("UPDATE courier_files SET gone = TRUE WHERE id = :id", id=gone)
    kit.write("UPDATE courier_files SET path = 'disk:/Library2/diary.txt' WHERE id = :id", id=outside)
    kit.write("UPDATE courier_files SET is_folder = TRUE WHERE id = :id", id=folder)
    before = kit.row_counts()
    for id in (gone, outside, folder, 404, 0, -1, 2**31, 2**70):
        with pytest.raises(PermanentError, match="no such file"):
            kit.service.order(READER, id, "n1")
    assert kit.row_counts() == before


def test_no_order_is_accepted_after_a_block(kit: CourierKit) -> None:
    file_id = kit.add_file()
    for round in range(5):
        user_id = 100 + round
        kit.add_user(user_id)
        decided, late = threading.Event(), list[object]()
        block = kit.update_time()

        def act(
            n: int,
            user_id: int = user_id,
            block: UpdateTime = block,
            decided: threading.Event = decided,
            late: list[object] = late,
        ) -> None:
            if n == 0:
                kit.service.decide(user_id, "BLOCKED", by=ADMIN, at=block)
                decided.set()
                return
            for click in itertools.count():
                # Limited, because SQLite does not queue writers fairly and the decision could wait for long.
                was_decided = decided.is_set() or (click >= 10 and decided.wait(60))
                try:
                    kit.service.order(user_id, file_id, f"{n} {click}")
                except Refused:
                    return
                if was_decided:
                    late.append((n, click))
                    return

        assert [each for each in at_once(4, act) if each is not None] == []
        assert late == []


def test_accepted_order_is_stored_before_a_concurrent_block(kit: CourierKit, monkeypatch: pytest.MonkeyPatch) -> None:
    user_id, file_id = kit.add_user().id, kit.add_file()
    story, asked, real = list[str](), threading.Event(), tables.status_of

    def slow(tx: Any, id: int) -> str | None:
        found = real(tx, id)
        asked.set()
        # Long enough for a block that does not wait to overtake the order.
        blocked.wait(0.5)
        return found

    blocked = threading.Event()
    monkeypatch.setattr(tables, "status_of", slow)

    def act(n: int) -> None:
        if n == 0:
            kit.service.order(user_id, file_id, "n1")
            story.append("ordered")
            return
        asked.wait(10)
        kit.service.decide(user_id, "BLOCKED", by=ADMIN, at=kit.update_time())
        blocked.set()
        story.append("blocked")

    assert at_once(2, act) == [None, None]
    ((job,),) = kit.rows("SELECT count(*) FROM courier_orders")
    assert (job, blocked.is_set(), sorted(story)) == (1, True, ["blocked", "ordered"])

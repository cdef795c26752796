"""Promises about people: one name is one user, a key is shown once and kept nowhere, a session ends, and credits are granted within reason."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from apps.studio.errors import Conflict, NotFound, StudioError
from apps.studio.ledger import Balance
from apps.studio.people import LONGEST, MOST, SESSION, SESSIONS, People, User
from apps.studio.tests.kit import Atelier
from apps.studio.tests.scenes import at_once


@pytest.fixture
def people(atelier: Atelier) -> People:
    return atelier.people


@pytest.fixture
def ann(people: People) -> User:
    return people.add("ann")


def everything(atelier: Atelier) -> str:
    """All that the studio's own tables about people hold."""
    return str([atelier.rows(f"SELECT * FROM {table}") for table in ("studio_users", "studio_sessions", "studio_entries")])


# ---------------------------------------------------------------- who they are
def test_a_user_is_known_by_name_and_by_key(people: People, ann: User) -> None:
    assert ann.key is not None
    assert ann.key.startswith("studio_")
    assert len(ann.key) >= 40
    assert people.named("ann") == people.by_key(ann.key) == User(ann.id, "ann", admin=False)


def test_everybody_is_listed_in_the_order_of_their_coming(people: People, ann: User) -> None:
    bob = people.add("bob", admin=True)
    assert people.all() == [User(ann.id, "ann", admin=False), User(bob.id, "bob", admin=True)]


def test_a_key_is_shown_once_and_kept_nowhere(atelier: Atelier, people: People, ann: User) -> None:
    assert ann.key is not None
    _, token = people.sign_in(ann.key, atelier.clock.now())
    assert ann.key not in repr(ann)
    for secret in (ann.key, ann.key.removeprefix("studio_"), token):
        assert secret not in everything(atelier)
    assert all(user.key is None for user in people.all())


def test_no_two_users_have_the_same_name(atelier: Atelier, people: People, ann: User) -> None:
    before = atelier.stored()
    with pytest.raises(Conflict, match="There is a user ann already"):
        people.add("  ann ", credits=5)
    assert atelier.stored() == before


def test_of_many_who_take_a_name_at_once_one_has_it(atelier: Atelier, people: People) -> None:
    said = at_once(*[lambda: people.add("ann", credits=5)] * 6)
    assert sorted(type(each).__name__ for each in said) == ["Conflict"] * 5 + ["User"]
    assert atelier.balance(people.named("ann")).granted == 5


@pytest.mark.parametrize("name", ["", "  ", "a" * (LONGEST + 1), "two\nlines", "a\x00b", "a\u202eb"])
def test_a_name_that_cannot_be_read_is_refused(atelier: Atelier, people: People, name: str) -> None:
    before = atelier.stored()
    with pytest.raises(StudioError, match="cannot be kept"):
        people.add(name)
    assert atelier.stored() == before


@pytest.mark.parametrize("name", ["a" * LONGEST, "Åsa Öst", "王芳", "'; DROP TABLE studio_users; --"])
def test_any_name_that_can_be_read_is_kept_as_it_is(people: People, name: str) -> None:
    assert people.named(people.add(name).name).name == name


@pytest.mark.parametrize("name", ["Ann", "ann ", "", "a\x00", "a\ud800"])
def test_an_unknown_name_is_not_found(people: People, ann: User, name: str) -> None:
    for ask in (people.named, people.rekey, lambda name: people.grant(name, 1)):
        with pytest.raises(NotFound) as missing:
            ask(name)
        assert str(missing.value).startswith(f"There is no user {name!r}: ")


# ---------------------------------------------------------------- how they are known
@pytest.mark.parametrize("key", ["", "studio_", "studio_0", "\x00", "\ud800"])
def test_a_key_of_nobody_is_not_found(atelier: Atelier, people: People, ann: User, key: str) -> None:
    with pytest.raises(NotFound, match="Nobody has this key"):
        people.by_key(key)
    with pytest.raises(NotFound, match="Nobody has this key"):
        people.sign_in(key, atelier.clock.now())
    assert atelier.stored()["studio_sessions"] == 0


def test_a_session_lasts_thirty_days(atelier: Atelier, people: People, ann: User) -> None:
    now = atelier.clock.now()
    user, token = people.sign_in(ann.key or "", now)
    assert user == people.user_of_session(token, now) == people.user_of_session(token, now + SESSION - timedelta(seconds=1))
    with pytest.raises(NotFound, match="sign in again"):
        people.user_of_session(token, now + SESSION)


def test_sessions_that_are_over_go_with_the_next_sign_in(atelier: Atelier, people: People, ann: User) -> None:
    now = atelier.clock.now()
    people.sign_in(ann.key or "", now)
    people.sign_in(ann.key or "", now + timedelta(days=1))
    assert atelier.stored()["studio_sessions"] == 2
    people.sign_in(ann.key or "", now + SESSION)
    assert atelier.stored()["studio_sessions"] == 2


def test_sessions_of_a_user_are_bounded_and_the_oldest_end_first(atelier: Atelier, people: People, ann: User) -> None:
    now, bob = atelier.clock.now(), people.add("bob")
    _, of_bob = people.sign_in(bob.key or "", now)
    tokens = [people.sign_in(ann.key or "", now + timedelta(seconds=n))[1] for n in range(SESSIONS + 3)]
    for token in tokens[:3]:
        with pytest.raises(NotFound):
            people.user_of_session(token, now)
    assert {people.user_of_session(token, now).name for token in tokens[3:]} == {"ann"}
    assert people.user_of_session(of_bob, now).name == "bob"


def test_sessions_stay_bounded_when_many_sign_in_at_once(atelier: Atelier, people: People, ann: User) -> None:
    now = atelier.clock.now()
    at_once(*[lambda: people.sign_in(ann.key or "", now)] * (SESSIONS + 6))
    assert atelier.stored()["studio_sessions"] == SESSIONS


def test_sessions_that_are_over_go_whoever_signs_in(atelier: Atelier, people: People, ann: User) -> None:
    now, bob = atelier.clock.now(), people.add("bob")
    people.sign_in(bob.key or "", now)
    people.sign_in(ann.key or "", now + SESSION)
    assert atelier.stored()["studio_sessions"] == 1


@pytest.mark.parametrize("guess", [
    lambda people, now: people.sign_in("studio_guessed", now), lambda people, now: people.sign_out("guessed"),
    lambda people, now: people.user_of_session("guessed", now),
], ids=["sign in", "sign out", "session"])
def test_guesses_wait_for_no_writer_and_keep_none_waiting(atelier: Atelier, guess: Callable[[People, datetime], object]) -> None:
    """On SQLite only one transaction at a time may write: this one would last for ever."""
    with atelier.studio.engine.begin() as tx:
        tx.execute(text("UPDATE studio_users SET admin = admin"))
        with suppress(NotFound):
            guess(atelier.people, atelier.clock.now())


def test_each_session_is_its_own(atelier: Atelier, people: People, ann: User) -> None:
    now, bob = atelier.clock.now(), people.add("bob")
    tokens = [people.sign_in(user.key or "", now)[1] for user in (ann, ann, bob)]
    people.sign_out(tokens[0])
    people.sign_out(tokens[0])
    with pytest.raises(NotFound):
        people.user_of_session(tokens[0], now)
    assert [people.user_of_session(token, now).name for token in tokens[1:]] == ["ann", "bob"]


def test_a_new_key_ends_the_old_one_and_its_sessions_and_no_others(atelier: Atelier, people: People, ann: User) -> None:
    now, bob = atelier.clock.now(), people.add("bob")
    (_, token), (_, of_bob) = people.sign_in(ann.key or "", now), people.sign_in(bob.key or "", now)
    again = people.rekey("ann")
    assert (again.id, people.by_key(again.key or "")) == (ann.id, people.named("ann"))
    for ask in (lambda: people.by_key(ann.key or ""), lambda: people.user_of_session(token, now)):
        with pytest.raises(NotFound):
            ask()
    assert people.user_of_session(of_bob, now) == people.by_key(bob.key or "") == people.named("bob")


# ---------------------------------------------------------------- their credits
def test_credits_are_granted_with_a_note(atelier: Atelier, people: People) -> None:
    ann, bob = people.add("ann", credits=5), people.add("bob")
    assert people.grant("ann", 3, "for the poster") == people.balance(ann.id) == Balance(8, 8, 0, 0, 0)
    assert [(line.entry, line.amount, line.job_id, line.note) for line in people.statement(ann.id)] == [
        ("grant", 3, None, "for the poster"), ("grant", 5, None, "when added")]
    assert (people.balance(bob.id), people.statement(bob.id)) == (Balance(0, 0, 0, 0, 0), [])
    atelier.check()


def test_a_statement_tells_of_jobs_too_the_newest_first(atelier: Atelier, people: People) -> None:
    ann = people.add("ann", credits=5)
    job = atelier.order(ann)
    atelier.run()
    assert [(line.entry, line.amount, line.job_id) for line in people.statement(ann.id)] == [("capture", 1, job), ("reserve", 1, job), ("grant", 5, None)]
    assert [line.entry for line in people.statement(ann.id, limit=1)] == ["capture"]


@pytest.mark.parametrize("amount", [0, -1, MOST + 1, 2**70])
def test_credits_that_make_no_sense_are_refused(atelier: Atelier, people: People, ann: User, amount: int) -> None:
    before = atelier.stored()
    with pytest.raises(StudioError, match="cannot be granted"):
        people.grant("ann", amount)
    if amount:
        with pytest.raises(StudioError, match="cannot be granted"):
            people.add("bob", credits=amount)
    assert atelier.stored() == before


@pytest.mark.parametrize("note", ["a" * (LONGEST + 1), "two\nlines", "a\x00"])
def test_a_note_that_cannot_be_read_is_refused(atelier: Atelier, people: People, ann: User, note: str) -> None:
    with pytest.raises(StudioError, match="note cannot be kept"):
        people.grant("ann", 1, note)
    assert atelier.balance(ann).granted == 0

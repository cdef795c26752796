"""Users: unique names, access keys that are never stored, sessions that expire, and grants."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from apps.studio.errors import Conflict, NotFound, StudioError
from apps.studio.ledger import Balance
from apps.studio.tests.scenarios import run_concurrently
from apps.studio.tests.studio_kit import StudioKit
from apps.studio.users import MAX_GRANT, MAX_NAME, MAX_SESSIONS, SESSION, User, Users


@pytest.fixture
def users(kit: StudioKit) -> Users:
    return kit.users


@pytest.fixture
def ann(users: Users) -> User:
    return users.add("ann")


def everything(kit: StudioKit) -> str:
    """All rows of the studio's tables about users."""
    return str([kit.rows(f"SELECT * FROM {table}") for table in ("studio_users", "studio_sessions", "studio_entries")])


# ---------------------------------------------------------------- names and keys
def test_user_is_found_by_name_and_key(users: Users, ann: User) -> None:
    assert ann.key is not None
    assert ann.key.startswith("studio_")
    assert len(ann.key) >= 40
    assert users.named("ann") == users.by_key(ann.key) == User(ann.id, "ann", admin=False)


def test_users_are_listed_in_order_of_creation(users: Users, ann: User) -> None:
    bob = users.add("bob", admin=True)
    assert users.all() == [User(ann.id, "ann", admin=False), User(bob.id, "bob", admin=True)]


def test_key_is_not_stored(kit: StudioKit, users: Users, ann: User) -> None:
    assert ann.key is not None
    _, token = users.sign_in(ann.key, kit.clock.now())
    assert ann.key not in repr(ann)
    for secret in (ann.key, ann.key.removeprefix("studio_"), token):
        assert secret not in everything(kit)
    assert all(user.key is None for user in users.all())


def test_names_are_unique(kit: StudioKit, users: Users, ann: User) -> None:
    before = kit.stored()
    with pytest.raises(Conflict, match="A user named ann already exists"):
        users.add("  ann ", credits=5)
    assert kit.stored() == before


def test_concurrent_users_with_one_name_create_one(kit: StudioKit, users: Users) -> None:
    said = run_concurrently(*[lambda: users.add("ann", credits=5)] * 6)
    assert sorted(type(each).__name__ for each in said) == ["Conflict"] * 5 + ["User"]
    assert kit.balance(users.named("ann")).granted == 5


@pytest.mark.parametrize("name", ["", "  ", "a" * (MAX_NAME + 1), "two\nlines", "a\x00b", "a\u202eb"])
def test_unprintable_name_is_refused(kit: StudioKit, users: Users, name: str) -> None:
    before = kit.stored()
    with pytest.raises(StudioError, match="is not valid"):
        users.add(name)
    assert kit.stored() == before


@pytest.mark.parametrize("name", ["a" * MAX_NAME, "Åsa Öst", "王芳", "'; DROP TABLE studio_users; --"])
def test_printable_name_is_stored_unchanged(users: Users, name: str) -> None:
    assert users.named(users.add(name).name).name == name


@pytest.mark.parametrize("name", ["Ann", "ann ", "", "a\x00", "a\ud800"])
def test_unknown_name_is_not_found(users: Users, ann: User, name: str) -> None:
    for ask in (users.named, users.replace_key, lambda name: users.grant(name, 1)):
        with pytest.raises(NotFound) as missing:
            ask(name)
        assert str(missing.value).startswith(f"There is no user {name!r}. ")


# ---------------------------------------------------------------- sessions
@pytest.mark.parametrize("key", ["", "studio_", "studio_0", "\x00", "\ud800"])
def test_unknown_key_is_not_found(kit: StudioKit, users: Users, ann: User, key: str) -> None:
    with pytest.raises(NotFound, match="This access key is not valid"):
        users.by_key(key)
    with pytest.raises(NotFound, match="This access key is not valid"):
        users.sign_in(key, kit.clock.now())
    assert kit.stored()["studio_sessions"] == 0


def test_session_lasts_thirty_days(kit: StudioKit, users: Users, ann: User) -> None:
    now = kit.clock.now()
    user, token = users.sign_in(ann.key or "", now)
    assert (
        user == users.user_by_session(token, now) == users.user_by_session(token, now + SESSION - timedelta(seconds=1))
    )
    with pytest.raises(NotFound, match="Sign in again"):
        users.user_by_session(token, now + SESSION)


def test_sign_in_deletes_expired_sessions_of_the_user(kit: StudioKit, users: Users, ann: User) -> None:
    now = kit.clock.now()
    users.sign_in(ann.key or "", now)
    users.sign_in(ann.key or "", now + timedelta(days=1))
    assert kit.stored()["studio_sessions"] == 2
    users.sign_in(ann.key or "", now + SESSION)
    assert kit.stored()["studio_sessions"] == 2


def test_number_of_sessions_is_limited_and_the_oldest_end_first(kit: StudioKit, users: Users, ann: User) -> None:
    now, bob = kit.clock.now(), users.add("bob")
    _, of_bob = users.sign_in(bob.key or "", now)
    tokens = [users.sign_in(ann.key or "", now + timedelta(seconds=n))[1] for n in range(MAX_SESSIONS + 3)]
    for token in tokens[:3]:
        with pytest.raises(NotFound):
            users.user_by_session(token, now)
    assert {users.user_by_session(token, now).name for token in tokens[3:]} == {"ann"}
    assert users.user_by_session(of_bob, now).name == "bob"


def test_number_of_sessions_is_limited_for_concurrent_sign_ins(kit: StudioKit, users: Users, ann: User) -> None:
    now = kit.clock.now()
    run_concurrently(*[lambda: users.sign_in(ann.key or "", now)] * (MAX_SESSIONS + 6))
    assert kit.stored()["studio_sessions"] == MAX_SESSIONS


def test_sign_in_deletes_expired_sessions_of_other_users(kit: StudioKit, users: Users, ann: User) -> None:
    now, bob = kit.clock.now(), users.add("bob")
    users.sign_in(bob.key or "", now)
    users.sign_in(ann.key or "", now + SESSION)
    assert kit.stored()["studio_sessions"] == 1


@pytest.mark.parametrize(
    "guess",
    [
        lambda users, now: users.sign_in("studio_guessed", now),
        lambda users, now: users.sign_out("guessed"),
        lambda users, now: users.user_by_session("guessed", now),
    ],
    ids=["sign in", "sign out", "session"],
)
def test_wrong_keys_take_no_write_lock(kit: StudioKit, guess: Callable[[Users, datetime], object]) -> None:
    """On SQLite, only one transaction can write at a time; this one never ends."""
    with kit.studio.engine.begin() as tx:
        tx.execute(text("UPDATE studio_users SET admin = admin"))
        with suppress(NotFound):
            guess(kit.users, kit.clock.now())


def test_sessions_are_independent(kit: StudioKit, users: Users, ann: User) -> None:
    now, bob = kit.clock.now(), users.add("bob")
    tokens = [users.sign_in(user.key or "", now)[1] for user in (ann, ann, bob)]
    users.sign_out(tokens[0])
    users.sign_out(tokens[0])
    with pytest.raises(NotFound):
        users.user_by_session(tokens[0], now)
    assert [users.user_by_session(token, now).name for token in tokens[1:]] == ["ann", "bob"]


def test_new_key_ends_only_the_sessions_of_its_user(kit: StudioKit, users: Users, ann: User) -> None:
    now, bob = kit.clock.now(), users.add("bob")
    (_, token), (_, of_bob) = users.sign_in(ann.key or "", now), users.sign_in(bob.key or "", now)
    again = users.replace_key("ann")
    assert (again.id, users.by_key(again.key or "")) == (ann.id, users.named("ann"))
    for ask in (lambda: users.by_key(ann.key or ""), lambda: users.user_by_session(token, now)):
        with pytest.raises(NotFound):
            ask()
    assert users.user_by_session(of_bob, now) == users.by_key(bob.key or "") == users.named("bob")


# ---------------------------------------------------------------- credits
def test_credits_are_granted_with_a_note(kit: StudioKit, users: Users) -> None:
    ann, bob = users.add("ann", credits=5), users.add("bob")
    assert users.grant("ann", 3, "for the poster") == users.balance(ann.id) == Balance(8, 8, 0, 0, 0)
    assert [(line.entry, line.amount, line.job_id, line.note) for line in users.statement(ann.id)] == [
        ("grant", 3, None, "for the poster"),
        ("grant", 5, None, "when added"),
    ]
    assert (users.balance(bob.id), users.statement(bob.id)) == (Balance(0, 0, 0, 0, 0), [])
    kit.check()


def test_statement_contains_jobs_newest_first(kit: StudioKit, users: Users) -> None:
    ann = users.add("ann", credits=5)
    job = kit.order(ann)
    kit.run()
    assert [(line.entry, line.amount, line.job_id) for line in users.statement(ann.id)] == [
        ("capture", 1, job),
        ("reserve", 1, job),
        ("grant", 5, None),
    ]
    assert [line.entry for line in users.statement(ann.id, limit=1)] == ["capture"]


@pytest.mark.parametrize("amount", [0, -1, MAX_GRANT + 1, 2**70])
def test_invalid_grant_is_refused(kit: StudioKit, users: Users, ann: User, amount: int) -> None:
    before = kit.stored()
    with pytest.raises(StudioError, match="Cannot grant"):
        users.grant("ann", amount)
    if amount:
        with pytest.raises(StudioError, match="Cannot grant"):
            users.add("bob", credits=amount)
    assert kit.stored() == before


@pytest.mark.parametrize("note", ["a" * (MAX_NAME + 1), "two\nlines", "a\x00"])
def test_unprintable_note_is_refused(kit: StudioKit, users: Users, ann: User, note: str) -> None:
    with pytest.raises(StudioError, match="The note must be one line"):
        users.grant("ann", 1, note)
    assert kit.balance(ann).granted == 0

"""The people: who may order images, by which key they are known, and what credits they have."""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Self

from sqlalchemy import ColumnElement, Connection, delete, select, update

from apps.common.database import insert, reading

from . import ledger
from .errors import Conflict, NotFound, StudioError
from .jobs import Studio
from .ledger import Balance, Line, Standing
from .tables import sessions, users

LONGEST = 100
"""Characters of a name."""
MOST = 1_000_000
"""Credits that are granted at once."""
SESSION = timedelta(days=30)
SESSIONS = 20
"""The most sessions of one user at once. The oldest end first."""
PRUNED = 100
"""The most expired sessions of other users that one sign-in deletes."""
PREFIX = "studio_"


@dataclass(frozen=True)
class User:
    """Someone who may order images."""

    id: int
    name: str
    admin: bool
    key: str | None = field(default=None, repr=False)
    """Only of a user who was just added, or given a new one: it is kept nowhere, and shown this once."""


class Credential(NamedTuple):
    """A credential that identifies a user, as it is stored."""

    sort: Literal["key", "session"]
    hash: str

    @classmethod
    def of(cls, sort: Literal["key", "session"], secret: str) -> Self:
        return cls(sort, _hash(secret))


class People:
    """What is done about people. Every verb checks all of its input before it stores anything."""

    def __init__(self, studio: Studio) -> None:
        self._engine, self._reading = studio.engine, reading(studio.engine)

    # ------------------------------------------------------------ who they are
    def add(self, name: str, *, admin: bool = False, credits: int = 0) -> User:
        """A new user, with the key by which they are known from now on. No two have the same name."""
        key, called = _key(), _name(name)
        if credits:
            _amount(credits)
        with self._engine.begin() as tx:
            added = insert(tx, users).values(name=called, key_hash=_hash(key), admin=admin).on_conflict_do_nothing(index_elements=["name"])
            id = tx.scalar(added.returning(users.c.id))
            if id is None:
                raise Conflict(f"There is a user {called} already: give another name.")
            if credits:
                ledger.grant(tx, id, credits, "when added")
        return User(id, called, admin, key)

    def rekey(self, name: str) -> User:
        """A new key for a user. The old one, and whoever is signed in with it, ends now."""
        key = _key()
        with self._engine.begin() as tx:
            user = _by_name(tx, name)
            tx.execute(update(users).where(users.c.id == user.id).values(key_hash=_hash(key)))
            tx.execute(delete(sessions).where(sessions.c.user_id == user.id))
        return User(user.id, user.name, user.admin, key)

    def all(self) -> list[User]:
        """Everybody, in the order in which they were added."""
        with self._reading.begin() as tx:
            return [User(*row) for row in tx.execute(_USERS.order_by(users.c.id))]

    def named(self, name: str) -> User:
        with self._reading.begin() as tx:
            return _by_name(tx, name)

    # ------------------------------------------------------------ how they are known
    def by_key(self, key: str) -> User:
        """Whose key this is."""
        with self._reading.begin() as tx:
            return _by_key(tx, key)

    def sign_in(self, key: str, now: datetime) -> tuple[User, str]:
        """Whose key this is, and a token that says so for thirty days."""
        # A guess takes no write lock.
        self.by_key(key)
        token = secrets.token_urlsafe(32)
        with self._engine.begin() as tx:
            user = _by_key(tx, key, held=True)
            _prune(tx, user.id, now)
            tx.execute(sessions.insert().values(token_hash=_hash(token), user_id=user.id, expires_at=now + SESSION))
        return user, token

    def user_of_session(self, token: str, now: datetime) -> User:
        """Who signed in with this token, for as long as it lasts."""
        signed_in = select(sessions.c.user_id).where(sessions.c.token_hash == _hash(token), sessions.c.expires_at > now)
        with self._reading.begin() as tx:
            return _one(tx, users.c.id.in_(signed_in), "Nobody is signed in with this token: sign in again.")

    def known(self, credentials: Collection[Credential], now: datetime) -> set[Credential]:
        """The credentials among these that are valid."""
        keys, tokens = ([each.hash for each in credentials if each.sort == sort] for sort in ("key", "session"))
        good = users.c.key_hash.in_(keys), sessions.c.token_hash.in_(tokens) & (sessions.c.expires_at > now)
        with self._reading.begin() as tx:
            found = [Credential("key", hash) for hash in (tx.scalars(select(users.c.key_hash).where(good[0])) if keys else ())]
            return {*found, *(Credential("session", hash) for hash in (tx.scalars(select(sessions.c.token_hash).where(good[1])) if tokens else ()))}

    def sign_out(self, token: str) -> None:
        """End this session. An unknown token is ignored and takes no write lock."""
        this = sessions.c.token_hash == _hash(token)
        with self._reading.begin() as tx:
            known = tx.scalar(select(sessions.c.user_id).where(this))
        if known is not None:
            with self._engine.begin() as tx:
                tx.execute(delete(sessions).where(this))

    # ------------------------------------------------------------ their credits
    def grant(self, name: str, amount: int, note: str | None = None) -> Balance:
        """Give a user credits; how they stand then."""
        _amount(amount)
        if note is not None and (len(note) > LONGEST or not note.isprintable()):
            raise StudioError(f"The note cannot be kept: give up to {LONGEST} characters, all of them visible, in one line.")
        with self._engine.begin() as tx:
            user = _by_name(tx, name)
            ledger.grant(tx, user.id, amount, note or None)
            return ledger.balance(tx, user.id)

    def balance(self, user_id: int) -> Balance:
        with self._reading.begin() as tx:
            return ledger.balance(tx, user_id)

    def standing(self, user_ids: Collection[int]) -> dict[int, Standing]:
        """The balances of these users. The query is cheap enough to run often."""
        with self._reading.begin() as tx:
            return ledger.standing(tx, user_ids)

    def statement(self, user_id: int, limit: int = 50) -> list[Line]:
        """A user's entries, the newest first."""
        with self._reading.begin() as tx:
            return ledger.statement(tx, user_id, limit)


_USERS = select(users.c.id, users.c.name, users.c.admin)


def _one(tx: Connection, fits: ColumnElement[bool], missing: str, *, held: bool = False) -> User:
    """The user who matches. With `held`, the row is locked until the transaction ends, against new keys and sign-ins."""
    found = tx.execute(_USERS.where(fits).with_for_update(key_share=True) if held else _USERS.where(fits)).one_or_none()
    if found is None:
        raise NotFound(missing)
    return User(*found)


def _prune(tx: Connection, user_id: int, now: datetime) -> None:
    """Make room for one more session of this user, and delete some expired sessions of any user."""
    kept = select(sessions.c.token_hash).where(sessions.c.user_id == user_id, sessions.c.expires_at > now).order_by(
        sessions.c.expires_at.desc(), sessions.c.token_hash).limit(SESSIONS - 1)
    tx.execute(delete(sessions).where(sessions.c.user_id == user_id, sessions.c.token_hash.not_in(kept)))
    # Skip sessions that another sign-in is deleting: two sign-ins that wait for each other would both fail.
    over = select(sessions.c.token_hash).where(sessions.c.expires_at <= now).limit(PRUNED).with_for_update(skip_locked=True)
    tx.execute(delete(sessions).where(sessions.c.token_hash.in_(over)))


def _by_key(tx: Connection, key: str, *, held: bool = False) -> User:
    missing = "Nobody has this key: give the one that was shown when the user was added, or ask for a new one."
    return _one(tx, users.c.key_hash == _hash(key), missing, held=held)


def _by_name(tx: Connection, name: str) -> User:
    missing = f"There is no user {name[:LONGEST]!r}: `users` lists all there are."
    # Some of what cannot be read could not even be asked for.
    if not name.isprintable():
        raise NotFound(missing)
    return _one(tx, users.c.name == name, missing)


def _key() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _hash(secret: str) -> str:
    # No salt and no slow hash: keys and tokens are 32 random bytes, which nobody guesses.
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _name(given: str) -> str:
    name = given.strip()
    if not name or len(name) > LONGEST or not name.isprintable():
        raise StudioError(f"The name {given[:40]!r} cannot be kept: give 1 to {LONGEST} characters, all of them visible, in one line.")
    return name


def _amount(credits: int) -> None:
    if not 0 < credits <= MOST:
        raise StudioError(f"{str(credits)[:40]} credits cannot be granted: give a whole number from 1 to {MOST}.")

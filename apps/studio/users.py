"""Users: their access keys, sessions and credits."""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Self

from sqlalchemy import ColumnElement, Connection, delete, select, update

from apps.common.database import insert, read_only

from . import ledger
from .errors import Conflict, NotFound, StudioError
from .jobs import Studio
from .ledger import Balance, BalanceVersion, LedgerEntry
from .tables import sessions, users

MAX_NAME = 100
"""The longest name, in characters."""
MAX_GRANT = 1_000_000
"""The largest grant, in credits."""
SESSION = timedelta(days=30)
MAX_SESSIONS = 20
"""The most sessions of one user. A new session ends the oldest."""
MAX_PRUNED = 100
"""The most expired sessions of other users that one sign-in deletes."""
KEY_PREFIX = "studio_"


@dataclass(frozen=True)
class User:
    """A user of the studio."""

    id: int
    name: str
    admin: bool
    key: str | None = field(default=None, repr=False)
    """The access key, only for a user who was just added or got a new key. It is not stored."""


class Credential(NamedTuple):
    """A credential that identifies a user, as it is stored."""

    sort: Literal["key", "session"]
    hash: str

    @classmethod
    def of(cls, sort: Literal["key", "session"], secret: str) -> Self:
        return cls(sort, _hash(secret))


class Users:
    """Manages users. Every method validates its input before it stores anything."""

    def __init__(self, studio: Studio) -> None:
        self._engine, self._reading = studio.engine, read_only(studio.engine)

    # ------------------------------------------------------------ users
    def add(self, name: str, *, admin: bool = False, credits: int = 0) -> User:
        """Add a user and return them with their access key. Names are unique."""
        key, called = _new_key(), _clean_name(name)
        if credits:
            _check_amount(credits)
        with self._engine.begin() as tx:
            added = (
                insert(tx, users)
                .values(name=called, key_hash=_hash(key), admin=admin)
                .on_conflict_do_nothing(index_elements=["name"])
            )
            id = tx.scalar(added.returning(users.c.id))
            if id is None:
                raise Conflict(f"A user named {called} already exists. Choose another name.")
            if credits:
                ledger.grant(tx, id, credits, "when added")
        return User(id, called, admin, key)

    def replace_key(self, name: str) -> User:
        """Replace a user's access key. The old key and all sessions end at once."""
        key = _new_key()
        with self._engine.begin() as tx:
            user = _by_name(tx, name)
            tx.execute(update(users).where(users.c.id == user.id).values(key_hash=_hash(key)))
            tx.execute(delete(sessions).where(sessions.c.user_id == user.id))
        return User(user.id, user.name, user.admin, key)

    def all(self) -> list[User]:
        """All users, in the order in which they were added."""
        with self._reading.begin() as tx:
            return [User(*row) for row in tx.execute(_USERS.order_by(users.c.id))]

    def named(self, name: str) -> User:
        with self._reading.begin() as tx:
            return _by_name(tx, name)

    # ------------------------------------------------------------ credentials
    def by_key(self, key: str) -> User:
        """The user with this access key."""
        with self._reading.begin() as tx:
            return _by_key(tx, key)

    def sign_in(self, key: str, now: datetime) -> tuple[User, str]:
        """Start a session for the user with this access key; return the user and the session token."""
        # Check the key first, so that a wrong key takes no write lock.
        self.by_key(key)
        token = secrets.token_urlsafe(32)
        with self._engine.begin() as tx:
            user = _by_key(tx, key, lock=True)
            _prune(tx, user.id, now)
            tx.execute(sessions.insert().values(token_hash=_hash(token), user_id=user.id, expires_at=now + SESSION))
        return user, token

    def user_by_session(self, token: str, now: datetime) -> User:
        """The user of this session, until it expires."""
        signed_in = select(sessions.c.user_id).where(sessions.c.token_hash == _hash(token), sessions.c.expires_at > now)
        with self._reading.begin() as tx:
            return _find_user(tx, users.c.id.in_(signed_in), "Your session has ended. Sign in again.")

    def valid_credentials(self, credentials: Collection[Credential], now: datetime) -> set[Credential]:
        """The credentials among these that are valid."""
        keys, tokens = ([each.hash for each in credentials if each.sort == sort] for sort in ("key", "session"))
        good = users.c.key_hash.in_(keys), sessions.c.token_hash.in_(tokens) & (sessions.c.expires_at > now)
        with self._reading.begin() as tx:
            found = [
                Credential("key", hash)
                for hash in (tx.scalars(select(users.c.key_hash).where(good[0])) if keys else ())
            ]
            return {
                *found,
                *(
                    Credential("session", hash)
                    for hash in (tx.scalars(select(sessions.c.token_hash).where(good[1])) if tokens else ())
                ),
            }

    def sign_out(self, token: str) -> None:
        """End this session. An unknown token is ignored and takes no write lock."""
        this = sessions.c.token_hash == _hash(token)
        with self._reading.begin() as tx:
            valid_credentials = tx.scalar(select(sessions.c.user_id).where(this))
        if valid_credentials is not None:
            with self._engine.begin() as tx:
                tx.execute(delete(sessions).where(this))

    # ------------------------------------------------------------ credits
    def grant(self, name: str, amount: int, note: str | None = None) -> Balance:
        """Grant a user credits and return the new balance."""
        _check_amount(amount)
        if note is not None and (len(note) > MAX_NAME or not note.isprintable()):
            raise StudioError(f"The note must be one line of at most {MAX_NAME} printable characters.")
        with self._engine.begin() as tx:
            user = _by_name(tx, name)
            ledger.grant(tx, user.id, amount, note or None)
            return ledger.balance(tx, user.id)

    def balance(self, user_id: int) -> Balance:
        with self._reading.begin() as tx:
            return ledger.balance(tx, user_id)

    def balance_versions(self, user_ids: Collection[int]) -> dict[int, BalanceVersion]:
        """The balances of these users. The query is cheap enough to run often."""
        with self._reading.begin() as tx:
            return ledger.balance_versions(tx, user_ids)

    def statement(self, user_id: int, limit: int = 50) -> list[LedgerEntry]:
        """A user's entries, newest first."""
        with self._reading.begin() as tx:
            return ledger.statement(tx, user_id, limit)


_USERS = select(users.c.id, users.c.name, users.c.admin)


def _find_user(tx: Connection, fits: ColumnElement[bool], missing: str, *, lock: bool = False) -> User:
    """Find a user. With `lock`, lock the row until the transaction ends, against new keys and sign-ins."""
    found = tx.execute(_USERS.where(fits).with_for_update(key_share=True) if lock else _USERS.where(fits)).one_or_none()
    if found is None:
        raise NotFound(missing)
    return User(*found)


def _prune(tx: Connection, user_id: int, now: datetime) -> None:
    """Make room for one more session of this user, and delete some expired sessions of any user."""
    kept = (
        select(sessions.c.token_hash)
        .where(sessions.c.user_id == user_id, sessions.c.expires_at > now)
        .order_by(sessions.c.expires_at.desc(), sessions.c.token_hash)
        .limit(MAX_SESSIONS - 1)
    )
    tx.execute(delete(sessions).where(sessions.c.user_id == user_id, sessions.c.token_hash.not_in(kept)))
    # Skip sessions that another sign-in is deleting: two sign-ins that wait for each other would both fail.
    over = (
        select(sessions.c.token_hash)
        .where(sessions.c.expires_at <= now)
        .limit(MAX_PRUNED)
        .with_for_update(skip_locked=True)
    )
    tx.execute(delete(sessions).where(sessions.c.token_hash.in_(over)))


def _by_key(tx: Connection, key: str, *, lock: bool = False) -> User:
    missing = "This access key is not valid. Check it, or ask an administrator for a new one."
    return _find_user(tx, users.c.key_hash == _hash(key), missing, lock=lock)


def _by_name(tx: Connection, name: str) -> User:
    missing = f"There is no user {name[:MAX_NAME]!r}. `users` lists all users."
    # PostgreSQL rejects some unprintable characters.
    if not name.isprintable():
        raise NotFound(missing)
    return _find_user(tx, users.c.name == name, missing)


def _new_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def _hash(secret: str) -> str:
    # No salt and no slow hash: keys and tokens are 32 random bytes, so they cannot be guessed.
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _clean_name(given: str) -> str:
    name = given.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise StudioError(
            f"The name {given[:40]!r} is not valid. Use one line of 1 to {MAX_NAME} printable characters."
        )
    return name


def _check_amount(credits: int) -> None:
    if not 0 < credits <= MAX_GRANT:
        raise StudioError(f"Cannot grant {str(credits)[:40]} credits. Use a whole number from 1 to {MAX_GRANT}.")

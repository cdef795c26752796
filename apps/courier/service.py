"""Everything people may do with the courier, each in one transaction. It knows neither Telegram nor Yandex Disk."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import get_args

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from apps.common.database import insert, read_only
from apps.common.database import now as clock
from apps.common.job_ids import is_id
from interlock import Refused, TransitionRefused

from . import tables
from .delivery_views import public_error, select_deliveries, to_view
from .errors import CourierError, PermanentError
from .jobs import Courier, alert_token
from .redact import user_alias
from .service_models import (
    Card,
    Decision,
    DeliveryView,
    LastError,
    Overview,
    Person,
    StuckDelivery,
    UpdateTime,
    User,
    WorkerAge,
)
from .settings import Settings
from .tables import doubts, orders, tokens, users

MAX_ERRORS = 5
"""Errors that an overview shows."""
_USERS = select(users.c.id, users.c.name, users.c.language, users.c.status, users.c.asked_at)


class Service:
    """The operations of the courier. Each one checks all of its input before it stores anything."""

    def __init__(self, courier: Courier, settings: Settings, *, now: Callable[[], datetime] = clock) -> None:
        self._courier, self._settings, self._engine, self._now = courier, settings, courier.engine, now
        self._read_engine = read_only(courier.engine)
        self._deliveries = select_deliveries(courier.engine.dialect)

    # ------------------------------------------------------------ users
    def register(self, person: Person, at: UpdateTime) -> tuple[User, bool]:
        """Store a person with their current name and language. Return the user, and True if they are new.

        New users are PENDING until an administrator decides. Administrators become ACTIVE at once.
        """
        if not _is_valid_id(person.id, 63):
            raise CourierError("This is not a Telegram user ID.")
        now = {"name": person.name, "language": person.language or ""}
        with self._engine.begin() as tx:
            added = (
                insert(tx, users)
                .values(id=person.id, asked_at=at.at, **now)
                .on_conflict_do_nothing(index_elements=["id"])
            )
            new = tx.scalar(added.returning(users.c.id)) is not None
            if not new:
                tx.execute(update(users).where(users.c.id == person.id).values(now))
            if person.id in self._settings.admins:
                _decide(tx, person.id, "ACTIVE", person.id, at)
            found = _user(tx, person.id)
        if found is None:
            raise CourierError("A user that was just stored is missing. Check the database.")
        return found, new

    def user(self, id: int) -> User | None:
        with self._read_engine.begin() as tx:
            return _user(tx, id)

    def users(self) -> list[User]:
        """List everyone who ever asked for access, oldest request first."""
        with self._read_engine.begin() as tx:
            return [User(**row) for row in tx.execute(_USERS.order_by(users.c.asked_at, users.c.id)).mappings()]

    def decide(self, user_id: int, status: Decision, *, by: int, at: UpdateTime) -> User | None:
        """Allow or block a user, unless a later decision is stored. Return the user, or None if unknown.

        Commands that arrive twice or out of order therefore end in the intended state.
        """
        if by not in self._settings.admins:
            raise PermanentError("forbidden", "Only administrators decide who may use the library.")
        if status not in get_args(Decision):
            raise CourierError("A user can only be set to ACTIVE or BLOCKED.")
        with self._engine.begin() as tx:
            if _is_valid_id(user_id, 63):
                _decide(tx, user_id, status, by, at)
            return _user(tx, user_id)

    # ------------------------------------------------------------ deliveries
    def order(self, user_id: int, file_id: int, nonce: str) -> tuple[DeliveryView, bool]:
        """Order a file. Return its delivery, and True if it is new. The same nonce always finds the same delivery.

        Raises `Refused` if the user is not ACTIVE, and `PermanentError` if the library has no such file.
        """
        key = hashlib.sha256(f"{user_id}:{file_id}:{nonce}".encode(errors="replace")).hexdigest()
        with self._engine.begin() as tx:
            job = self._courier.deliver.using(conn=tx, idempotency_key=key, ttl=self._settings.ttl).enqueue(
                user_id, file_id
            )
            if job.created:
                self._check_file(tx, file_id)
                tx.execute(orders.insert().values(job_id=job.id, user_id=user_id, file_id=file_id))
            elif tables.status_of(tx, user_id) != "ACTIVE":
                raise Refused("The user is not allowed to use the library.")
            row = tx.execute(self._deliveries.where(orders.c.job_id == job.id)).mappings().one()
            return to_view(row), job.created

    def _check_file(self, tx: Connection, file_id: int) -> None:
        path = tables.path_of(tx, file_id) if _is_valid_id(file_id, 31) else None
        if path is None or not tables.is_inside(path, self._settings.folder):
            raise PermanentError("not_found", "The library has no such file.")

    def get_delivery(self, user_id: int, job_id: str) -> DeliveryView | None:
        """Return a delivery of this user. Another user's delivery is None, like one that does not exist."""
        return self._newest_delivery(user_id, orders.c.job_id == job_id) if is_id(job_id) else None

    def active_delivery(self, user_id: int, file_id: int) -> DeliveryView | None:
        """Return the user's newest delivery of this file that has not ended."""
        if not _is_valid_id(file_id, 31):
            return None
        not_ended = self._deliveries.selected_columns.phase.in_(("pending", "running"))
        return self._newest_delivery(user_id, and_(orders.c.file_id == file_id, not_ended))

    def cancel(self, user_id: int, job_id: str) -> DeliveryView | None:
        """Cancel a QUEUED delivery of this user; any other continues. Return it, or None if the user has no such one.

        If a worker claims the delivery at the same moment, it gets a cancel request and ends unless its file is sent
        first.
        """
        found = self.get_delivery(user_id, job_id)
        if found is None or found.state != "QUEUED":
            return found
        # Refused if the delivery has ended, or passed its commit, since we looked. Its state says so.
        with suppress(TransitionRefused):
            self._courier.app.cancel(job_id, by=user_alias(user_id))
        return self.get_delivery(user_id, job_id)

    def _newest_delivery(self, user_id: int, condition: ColumnElement[bool]) -> DeliveryView | None:
        if not _is_valid_id(user_id, 63):
            return None
        of_user = self._deliveries.where(orders.c.user_id == user_id, condition)
        with self._read_engine.begin() as tx:
            found = tx.execute(of_user.order_by(orders.c.job_id.desc()).limit(1)).mappings().one_or_none()
        return None if found is None else to_view(found)

    # ------------------------------------------------------------ cards
    def attach_card(self, job_id: str, message_id: int) -> None:
        """Make this message the card of the delivery. It follows the delivery from now on."""
        with self._engine.begin() as tx:
            tx.execute(
                update(orders).where(orders.c.job_id == job_id).values(card_id=message_id, shown=None, open=True)
            )

    def open_cards(self) -> list[Card]:
        """Return every card that may have to change, with its current delivery, in one query."""
        with self._read_engine.begin() as tx:
            rows = tx.execute(
                self._deliveries.where(orders.c.open, orders.c.card_id.is_not(None)).order_by(orders.c.job_id)
            ).mappings()
            return [Card(row["user_id"], row["language"], row["card_id"], row["shown"], to_view(row)) for row in rows]

    def mark_shown(self, card: Card, text: str, *, closed: bool) -> None:
        """Store the text of a card. A closed card is not updated again.

        Nothing is stored if another message has become the card of the delivery.
        """
        values = {"shown": text, **({"open": False} if closed else {})}
        with self._engine.begin() as tx:
            tx.execute(
                update(orders)
                .where(orders.c.job_id == card.delivery.job_id, orders.c.card_id == card.card_id)
                .values(values)
            )

    # ------------------------------------------------------------ administrators
    def alert_token(self) -> None:
        """Tell each administrator that Yandex Disk rejects the token, at most once a day for the same settings."""
        with self._engine.begin() as tx:
            alert_token(tx, self._courier.alert, self._settings.admins, datetime.now(UTC))

    def overview(self) -> Overview:
        """Return the state of all deliveries, workers and the token."""
        app, kind = self._courier.app, self._courier.deliver.name
        status = app.status()
        depths = [depth for depth in status.depths if depth.kind == kind]
        with self._read_engine.begin() as tx:
            expires_at = tx.scalar(select(func.max(tokens.c.expires_at)))
            doubted = tx.scalar(select(func.count()).select_from(doubts)) or 0
            stuck = tables.stuck_jobs(tx, kind, self._now())
        return Overview(
            counts=dict(status.counts.get("delivery", {})),
            waiting=sum(depth.due + depth.later + depth.held for depth in depths),
            running=sum(depth.running for depth in depths),
            oldest=max((depth.oldest for depth in depths), default=0.0),
            stuck=[StuckDelivery(*each) for each in stuck],
            workers=[WorkerAge(each.facts.name, each.silent, each.alive) for each in status.workers],
            token_expires_at=expires_at,
            errors=[
                LastError(job.finished_at or job.updated_at, *public_error(job.last_error))
                for job in app.jobs(kind=kind, state="FAILED", limit=MAX_ERRORS)
            ],
            doubted=doubted,
        )


def _user(tx: Connection, id: int) -> User | None:
    found = tx.execute(_USERS.where(users.c.id == id)).mappings().one_or_none() if _is_valid_id(id, 63) else None
    return None if found is None else User(**found)


def _decide(tx: Connection, user_id: int, status: Decision, by: int, at: UpdateTime) -> None:
    """Store a decision in one statement, so that the later of two concurrent decisions wins in either order."""
    same = and_(users.c.decided_at == at.at, users.c.decided_update < at.update_id)
    later = or_(users.c.decided_at.is_(None), users.c.decided_at < at.at, same)
    decided = {"status": status, "decided_by": by, "decided_at": at.at, "decided_update": at.update_id}
    tx.execute(update(users).where(users.c.id == user_id, later).values(decided))


def _is_valid_id(id: int, bits: int) -> bool:
    """Return whether a row can have this ID. The databases treat numbers that are too large differently."""
    return 0 < id < 1 << bits

"""The desk: all that people may do, each in one transaction. It knows the database and the engine, and neither Telegram nor Yandex."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Dialect, Label, RowMapping, Select, Text, and_, cast, func, or_, select, update

from apps.common.database import insert, of_engine, reading
from apps.common.database import now as clock
from apps.common.ids import is_id
from interlock import Refused, TransitionRefused

from . import tables
from .errors import Code, CourierError, Refusal
from .jobs import Courier, alert_token
from .redact import who
from .settings import Settings
from .tables import doubts, files, orders, tokens, users
from .words import LOST

Status = Literal["PENDING", "ACTIVE", "BLOCKED"]
Decision = Literal["ACTIVE", "BLOCKED"]
FINAL = ("DELIVERED", "FAILED", "CANCELLED", "EXPIRED")
LAST = 5
"""Errors that an overview shows."""
CODES = frozenset((*get_args(Code), "trouble", "unexpected"))
_ENGINE = re.compile(rf"{LOST}|it ran longer than its kind's max_runtime of [\d.e+]+ s")
_TYPE = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: .*)?", re.ASCII)


@dataclass(frozen=True)
class Person:
    """Someone who speaks to the bot, as Telegram describes them."""

    id: int
    name: str
    language: str | None = None


@dataclass(frozen=True)
class Moment:
    """When something was said. Of two within one second, the later has the larger `update_id`."""

    at: datetime
    update_id: int


@dataclass(frozen=True)
class User:
    """Someone who has asked to use the library, and what an administrator decided about that."""

    id: int
    name: str
    language: str
    status: Status
    asked_at: datetime


@dataclass(frozen=True)
class Shown:
    """A delivery, as its user sees it."""

    job_id: str
    file_id: int
    file_name: str
    state: str
    done: float | None
    """Bytes of `total` that have gone; None unless it runs."""
    total: float | None
    error_code: str | None
    """Why it failed, or has to be tried again, as far as there is a word for it."""
    attempt: int
    failed: int
    """Tries that did not work out. An attempt that was put off or given back is none."""
    doubted: bool
    """Whether the file may have arrived once more than the state says."""
    tries: int
    stopping: bool
    """Whether it runs and was asked to stop, which it may be too late for."""


@dataclass(frozen=True)
class Card:
    """A message that shows a delivery and is to follow it: with what text it was last seen, and what is true now."""

    user_id: int
    language: str
    card_id: int
    shown_text: str | None
    shown: Shown


@dataclass(frozen=True)
class Stuck:
    """A delivery whose worker has been silent for longer than its lease, so that another worker takes it over."""

    job_id: str
    state: str
    heartbeat_at: datetime


@dataclass(frozen=True)
class WorkerAge:
    """A worker, and how many seconds ago it was last heard of."""

    name: str
    age: float
    alive: bool


@dataclass(frozen=True)
class LastError:
    """Why a delivery failed: a known code and its sentence, or one word of the engine's, or the sort of exception. None names a person or a file."""

    at: datetime
    code: str
    sentence: str


@dataclass(frozen=True)
class Overview:
    """The state of the whole, for administrators."""

    counts: Mapping[str, int]
    """Deliveries by state."""
    waiting: int
    running: int
    oldest: float
    """Seconds for which the longest due delivery has been due."""
    stuck: list[Stuck]
    workers: list[WorkerAge]
    token_expires_at: datetime | None
    errors: list[LastError]
    """The newest first."""
    doubted: int
    """Deliveries whose file may have arrived twice, in total."""


class Desk:
    """What the courier does for people. Every verb checks all of its input before it stores anything."""

    def __init__(self, courier: Courier, settings: Settings, *, now: Callable[[], datetime] = clock) -> None:
        self._courier, self._settings, self._engine, self._now = courier, settings, courier.engine, now
        self._reading = reading(courier.engine)
        self._deliveries = _deliveries(courier.engine.dialect)

    # ------------------------------------------------------------ people
    def register(self, person: Person, at: Moment) -> tuple[User, bool]:
        """Know this person from now on, by the name and language they have now; True if they were a stranger.

        Nobody may use the library before it is decided, except an administrator, who is allowed by themselves.
        """
        if not _in_range(person.id, 63):
            raise CourierError("This is no id that Telegram gives.")
        now = {"name": person.name, "language": person.language or ""}
        with self._engine.begin() as tx:
            added = insert(tx, users).values(id=person.id, asked_at=at.at, **now).on_conflict_do_nothing(index_elements=["id"])
            new = tx.scalar(added.returning(users.c.id)) is not None
            if not new:
                tx.execute(update(users).where(users.c.id == person.id).values(now))
            if person.id in self._settings.admins:
                _decide(tx, person.id, "ACTIVE", person.id, at)
            found = _user(tx, person.id)
        if found is None:
            raise CourierError("A user that was just stored is not there: look at the database.")
        return found, new

    def user(self, id: int) -> User | None:
        with self._reading.begin() as tx:
            return _user(tx, id)

    def users(self) -> list[User]:
        """Everybody who ever asked, the first first."""
        with self._reading.begin() as tx:
            return [User(**row) for row in tx.execute(_USERS.order_by(users.c.asked_at, users.c.id)).mappings()]

    def decide(self, user_id: int, status: Decision, *, by: int, at: Moment) -> User | None:
        """Let a user in, or shut them out, unless something later was decided already; the user as they are then, None for a stranger.

        So commands that come twice, or in another order than they were given, end as they were meant to.
        """
        if by not in self._settings.admins:
            raise Refusal("forbidden", "Only administrators decide who may use the library.")
        if status not in get_args(Decision):
            raise CourierError("A user is made ACTIVE or BLOCKED, and nothing else.")
        with self._engine.begin() as tx:
            if _in_range(user_id, 63):
                _decide(tx, user_id, status, by, at)
            return _user(tx, user_id)

    # ------------------------------------------------------------ deliveries
    def order(self, user_id: int, file_id: int, nonce: str) -> tuple[Shown, bool]:
        """Have a file delivered; True if the delivery is a new one. The same nonce finds the same delivery, however long ago that was.

        `Refused` for whoever is not ACTIVE, `Refusal` for what is not in the library.
        """
        key = hashlib.sha256(f"{user_id}:{file_id}:{nonce}".encode(errors="replace")).hexdigest()
        with self._engine.begin() as tx:
            job = self._courier.deliver.using(conn=tx, idempotency_key=key, ttl=self._settings.ttl).enqueue(user_id, file_id)
            if job.created:
                self._check(tx, file_id)
                tx.execute(orders.insert().values(job_id=job.id, user_id=user_id, file_id=file_id))
            elif tables.status_of(tx, user_id) != "ACTIVE":
                raise Refused("The user is not allowed to use the library.")
            return self._shown(tx.execute(self._deliveries.where(orders.c.job_id == job.id)).mappings().one()), job.created

    def _check(self, tx: Connection, file_id: int) -> None:
        path = tables.path_of(tx, file_id) if _in_range(file_id, 31) else None
        if path is None or not tables.inside(path, self._settings.folder):
            raise Refusal("not_found", "The library has no such file.")

    def shown(self, user_id: int, job_id: str) -> Shown | None:
        """A delivery of this user. Another's is not found, as one that does not exist."""
        return self._one(user_id, orders.c.job_id == job_id) if is_id(job_id) else None

    def active(self, user_id: int, file_id: int) -> Shown | None:
        """The newest delivery of this file for this user that has not ended."""
        going = self._deliveries.selected_columns.phase.in_(("pending", "running"))
        return self._one(user_id, and_(orders.c.file_id == file_id, going)) if _in_range(file_id, 31) else None

    def cancel(self, user_id: int, job_id: str) -> Shown | None:
        """End a delivery of this user that is QUEUED; any other goes on. How it stands then; None if the user has none such.

        One that a worker takes in this very moment is asked to stop, and ends there unless its file is through first.
        """
        found = self.shown(user_id, job_id)
        if found is None or found.state != "QUEUED":
            return found
        # Refused if it has ended, or got past its commit, since we looked: its state says so.
        with suppress(TransitionRefused):
            self._courier.app.cancel(job_id, by=who(user_id))
        return self.shown(user_id, job_id)

    # ------------------------------------------------------------ cards
    def card(self, job_id: str, message_id: int) -> None:
        """From now on this message shows the delivery, and follows it."""
        with self._engine.begin() as tx:
            tx.execute(update(orders).where(orders.c.job_id == job_id).values(card_id=message_id, shown=None, open=True))

    def open_cards(self) -> list[Card]:
        """Every card that may have to change, with what is true now, in one look."""
        with self._reading.begin() as tx:
            rows = tx.execute(self._deliveries.where(orders.c.open, orders.c.card_id.is_not(None)).order_by(orders.c.job_id)).mappings()
            return [Card(row["user_id"], row["language"], row["card_id"], row["shown"], self._shown(row)) for row in rows]

    def mark_shown(self, card: Card, text: str, *, closed: bool) -> None:
        """A card has this text now; a closed one is not looked at again. Of a delivery that another message shows by now, nothing is said."""
        values = {"shown": text, **({"open": False} if closed else {})}
        with self._engine.begin() as tx:
            tx.execute(update(orders).where(orders.c.job_id == card.shown.job_id, orders.c.card_id == card.card_id).values(values))

    # ------------------------------------------------------------ administrators
    def alert_token(self) -> None:
        """Tell each administrator that the disk's token is refused: once a day for the same settings, however often it is found out."""
        with self._engine.begin() as tx:
            alert_token(tx, self._courier.alert, self._settings.admins, datetime.now(UTC))

    def overview(self) -> Overview:
        """How everything stands."""
        app, kind = self._courier.app, self._courier.deliver.name
        status = app.status()
        depths = [depth for depth in status.depths if depth.kind == kind]
        with self._reading.begin() as tx:
            expires_at = tx.scalar(select(func.max(tokens.c.expires_at)))
            doubted = tx.scalar(select(func.count()).select_from(doubts)) or 0
            silent = tables.silent(tx, kind, self._now())
        return Overview(
            counts=dict(status.counts.get("delivery", {})),
            waiting=sum(depth.due + depth.later + depth.held for depth in depths),
            running=sum(depth.running for depth in depths),
            oldest=max((depth.oldest for depth in depths), default=0.0),
            stuck=[Stuck(*each) for each in silent],
            workers=[WorkerAge(each.facts.name, each.silent, each.alive) for each in status.workers],
            token_expires_at=expires_at,
            errors=[LastError(job.finished_at or job.updated_at, *_told(job.last_error)) for job in app.jobs(kind=kind, state="FAILED", limit=LAST)],
            doubted=doubted,
        )

    # ------------------------------------------------------------ as rows
    def _one(self, user_id: int, fits: ColumnElement[bool]) -> Shown | None:
        """The newest delivery of this user that fits."""
        asked = self._deliveries.where(orders.c.user_id == user_id, fits).order_by(orders.c.job_id.desc()).limit(1)
        with self._reading.begin() as tx:
            found = tx.execute(asked).mappings().one_or_none() if _in_range(user_id, 63) else None
        return None if found is None else self._shown(found)

    @staticmethod
    def _shown(row: RowMapping) -> Shown:
        # A delivery that waits for its next try still has the progress of the last one.
        done, total, _ = json.loads(row["progress"]) if row["progress"] is not None and row["phase"] == "running" else (None, None, "")
        code = _told(row["last_error"])[0]
        return Shown(
            row["job_id"], row["file_id"], row["file_name"], row["state"], done, total, code if code in {*CODES, LOST} else None,
            row["attempt"], row["tries"] - row["tries_left"], row["doubted"], row["tries"],
            stopping=row["cancel_requested_at"] is not None and row["phase"] == "running")


def _deliveries(dialect: Dialect) -> Select[Any]:
    """Orders, with all that is to be seen of them."""
    job = of_engine(dialect, "jobs_now", "id", "state", "phase", "attempt", "tries", "tries_left", "last_error", "progress", "cancel_requested_at")
    doubted: Label[bool] = doubts.c.job_id.is_not(None).label("doubted")
    columns: list[ColumnElement[Any]] = [
        orders.c.job_id, orders.c.user_id, orders.c.file_id, orders.c.card_id, orders.c.shown, users.c.language, files.c.name.label("file_name"), job.c.state,
        job.c.phase, job.c.attempt, job.c.tries, job.c.tries_left, job.c.last_error, job.c.cancel_requested_at, cast(job.c.progress, Text).label("progress"),
        doubted,
    ]
    joined = orders.join(users, users.c.id == orders.c.user_id).join(files, files.c.id == orders.c.file_id).join(job, job.c.id == orders.c.job_id)
    return select(*columns).select_from(joined.outerjoin(doubts, doubts.c.job_id == orders.c.job_id))


_USERS = select(users.c.id, users.c.name, users.c.language, users.c.status, users.c.asked_at)


def _user(tx: Connection, id: int) -> User | None:
    found = tx.execute(_USERS.where(users.c.id == id)).mappings().one_or_none() if _in_range(id, 63) else None
    return None if found is None else User(**found)


def _decide(tx: Connection, user_id: int, status: Decision, by: int, at: Moment) -> None:
    """In one statement, so that of two decisions at once the later one stands, whichever is stored first."""
    same = and_(users.c.decided_at == at.at, users.c.decided_update < at.update_id)
    later = or_(users.c.decided_at.is_(None), users.c.decided_at < at.at, same)
    decided = {"status": status, "decided_by": by, "decided_at": at.at, "decided_update": at.update_id}
    tx.execute(update(users).where(users.c.id == user_id, later).values(decided))


def _told(error: str | None) -> tuple[str, str]:
    """What may be shown of a job's last error: all of it only where its words are known to be ours or the engine's."""
    text = (error or "").strip()
    code, colon, sentence = text.partition(": ")
    if colon and code in CODES and "\n" not in text:
        return code, sentence
    if _ENGINE.fullmatch(text):
        return text, ""
    last = _TYPE.fullmatch(text.rpartition("\n")[2]) if "Traceback (most recent call last):" in text else None
    return last[1] if last else "unknown", ""


def _in_range(id: int, bits: int) -> bool:
    """Could a row have this id? The databases differ in what they make of a number that is too big for them."""
    return 0 < id < 1 << bits

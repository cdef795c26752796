"""The credits: an append-only ledger, whose sums are everybody's balance. Each entry is written in the transaction of what causes it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, func, literal, select, update

from .errors import Refusal, StudioError
from .tables import Entry, entries, users

Settled = Literal["capture", "forfeit", "release"]
SETTLEMENTS: tuple[Settled, ...] = ("capture", "forfeit", "release")


@dataclass(frozen=True)
class Balance:
    """A user's credits. `granted` is always the sum of the other four."""

    granted: int
    available: int
    reserved: int
    captured: int
    forfeited: int


@dataclass(frozen=True)
class Line:
    """One entry, as its user sees it."""

    at: datetime
    entry: Entry
    amount: int
    job_id: str | None
    note: str | None


def grant(tx: Connection, user_id: int, amount: int, note: str | None) -> None:
    """Give a user credits."""
    tx.execute(entries.insert().values(user_id=user_id, entry="grant", amount=amount, note=note))


def reserve(tx: Connection, user_id: int, job_id: str, amount: int) -> None:
    """Set credits aside for a job, or refuse. The user's row is locked first: of many at once, no more succeed than there are credits for."""
    # Written, and not just locked: a caller's own transaction that sees an old snapshot is refused by the database then, instead of counting it.
    locked = update(users).where(users.c.id == user_id).values(admin=users.c.admin).returning(users.c.id)
    _affordable(tx, user_id, amount, tx.scalar(locked))
    tx.execute(entries.insert().values(user_id=user_id, job_id=job_id, entry="reserve", amount=amount))


def afford(tx: Connection, user_id: int, amount: int) -> None:
    """Refuse what a user cannot pay. Nothing is set aside: another order may spend the same credits next."""
    _affordable(tx, user_id, amount, tx.scalar(select(users.c.id).where(users.c.id == user_id)))


def _affordable(tx: Connection, user_id: int, amount: int, found: int | None) -> None:
    if found is None:
        raise Refusal("user_unknown", f"There is no user {user_id}: add one first.")
    available = balance(tx, user_id).available
    if available < amount:
        raise Refusal("credits_insufficient", f"The price is {amount}, and of your credits {available} can be used: ask an administrator for more.")


def settle(tx: Connection, job_id: str, entry: Settled, note: str | None = None) -> None:
    """What was reserved for a job is used, kept or given back: exactly that, and once."""
    reserved = select(entries.c.user_id, entries.c.job_id, literal(entry), entries.c.amount, literal(note)).where(
        entries.c.job_id == job_id, entries.c.entry == "reserve")
    # The moment is the column's own default: named here, it would be that of the reserve.
    written = tx.execute(entries.insert().from_select(["user_id", "job_id", "entry", "amount", "note"], reserved))
    if written.rowcount != 1:
        raise StudioError(f"Nothing is reserved for job {job_id}, so there is nothing to {entry}: look at its history, and at `check`.")


def balance(tx: Connection, user_id: int) -> Balance:
    """How a user's credits stand."""
    found = tx.execute(_SUMS.where(entries.c.user_id == user_id))
    return _balance({row.entry: int(row.total) for row in found})


_SUMS = select(entries.c.entry, func.sum(entries.c.amount).label("total")).group_by(entries.c.entry)


def _balance(sums: dict[str, int]) -> Balance:
    granted, reserve_, capture, forfeit, release = (sums.get(entry, 0) for entry in ("grant", "reserve", "capture", "forfeit", "release"))
    return Balance(granted, granted - reserve_ + release, reserve_ - capture - forfeit - release, capture, forfeit)


def statement(tx: Connection, user_id: int, limit: int = 50) -> list[Line]:
    """A user's entries, the newest first."""
    columns = entries.c.at, entries.c.entry, entries.c.amount, entries.c.job_id, entries.c.note
    rows = tx.execute(select(*columns).where(entries.c.user_id == user_id).order_by(entries.c.id.desc()).limit(limit))
    return [Line(*row) for row in rows]

"""Credits: an append-only ledger, and users' balances, which the database updates.

Each entry is written in the transaction of its cause.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, literal, select, update

from .errors import Refusal, StudioError
from .tables import Entry, balances, entries, users

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
class Standing:
    """A user's balance at one moment. Every entry increases `mark`, even if the balance ends up the same."""

    mark: int
    balance: Balance


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
    """Reserve credits for a job, or refuse. It locks the user's balance, so concurrent orders cannot overspend."""
    # Written, and not just locked: a caller's own transaction that sees an old snapshot is refused by the database then, instead of counting it.
    locked = update(balances).where(balances.c.user_id == user_id).values(grant=balances.c.grant).returning(*_SUMS)
    _affordable(tx, user_id, amount, tx.execute(locked).mappings().one_or_none())
    tx.execute(entries.insert().values(user_id=user_id, job_id=job_id, entry="reserve", amount=amount))


def afford(tx: Connection, user_id: int, amount: int) -> None:
    """Refuse what a user cannot pay. Nothing is set aside: another order may spend the same credits next."""
    _affordable(tx, user_id, amount, tx.execute(_BALANCES.where(balances.c.user_id == user_id)).mappings().one_or_none())


def _affordable(tx: Connection, user_id: int, amount: int, found: RowMapping | None) -> None:
    if found is None and tx.scalar(select(users.c.id).where(users.c.id == user_id)) is None:
        raise Refusal("user_unknown", f"There is no user {user_id}: add one first.")
    available = _balance(found).available
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
    return _balance(tx.execute(_BALANCES.where(balances.c.user_id == user_id)).mappings().one_or_none())


def standing(tx: Connection, user_ids: Collection[int]) -> dict[int, Standing]:
    """The balances of these users."""
    found = tx.execute(_BALANCES.add_columns(balances.c.user_id).where(balances.c.user_id.in_(user_ids))).mappings()
    rows = {row["user_id"]: row for row in found}
    return {id: Standing(sum(rows[id][each] for each in get_args(Entry)) if id in rows else 0, _balance(rows.get(id))) for id in user_ids}


def added_up(tx: Connection) -> dict[int, Balance]:
    """Every user's balance, computed from the ledger, which is authoritative. It reads every entry."""
    sums: dict[int, dict[str, int]] = {}
    for user_id, entry, total in tx.execute(
            select(entries.c.user_id, entries.c.entry, func.sum(entries.c.amount)).group_by(entries.c.user_id, entries.c.entry)):
        sums.setdefault(user_id, {})[entry] = int(total)
    return {user_id: _stands(**of_user) for user_id, of_user in sums.items()}


_SUMS: list[ColumnElement[Any]] = [balances.c[each] for each in get_args(Entry)]
_BALANCES: Select[Any] = select(*_SUMS)


def _balance(row: RowMapping | None) -> Balance:
    return _stands() if row is None else _stands(*(int(row[each]) for each in get_args(Entry)))


def _stands(grant: int = 0, reserve: int = 0, capture: int = 0, forfeit: int = 0, release: int = 0) -> Balance:
    return Balance(grant, grant - reserve + release, reserve - capture - forfeit - release, capture, forfeit)


def statement(tx: Connection, user_id: int, limit: int = 50) -> list[Line]:
    """A user's entries, the newest first."""
    columns = entries.c.at, entries.c.entry, entries.c.amount, entries.c.job_id, entries.c.note
    rows = tx.execute(select(*columns).where(entries.c.user_id == user_id).order_by(entries.c.id.desc()).limit(limit))
    return [Line(*row) for row in rows]

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

Settlement = Literal["capture", "forfeit", "release"]
SETTLEMENTS: tuple[Settlement, ...] = ("capture", "forfeit", "release")


@dataclass(frozen=True)
class Balance:
    """A user's credits. `granted` is always the sum of the other four."""

    granted: int
    available: int
    reserved: int
    captured: int
    forfeited: int


@dataclass(frozen=True)
class BalanceVersion:
    """A user's balance with a version number. Every entry increases `mark`, even if the balance ends up the same."""

    mark: int
    balance: Balance


@dataclass(frozen=True)
class LedgerEntry:
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
    # An update and not just a lock: the database then rejects a caller's transaction that sees an old snapshot.
    locked = update(balances).where(balances.c.user_id == user_id).values(grant=balances.c.grant).returning(*_SUMS)
    _check_affordable(tx, user_id, amount, tx.execute(locked).mappings().one_or_none())
    tx.execute(entries.insert().values(user_id=user_id, job_id=job_id, entry="reserve", amount=amount))


def check_affordable(tx: Connection, user_id: int, amount: int) -> None:
    """Refuse an order that the user cannot pay for. It reserves nothing."""
    _check_affordable(
        tx, user_id, amount, tx.execute(_BALANCES.where(balances.c.user_id == user_id)).mappings().one_or_none()
    )


def _check_affordable(tx: Connection, user_id: int, amount: int, found: RowMapping | None) -> None:
    if found is None and tx.scalar(select(users.c.id).where(users.c.id == user_id)) is None:
        raise Refusal("user_unknown", f"No user has the ID {user_id}. Add the user first.")
    available = _balance(found).available
    if available < amount:
        raise Refusal(
            "credits_insufficient",
            f"This picture costs {amount} {'credit' if amount == 1 else 'credits'}; you have {available}. "
            "Ask an administrator for more.",
        )


def settle(tx: Connection, job_id: str, entry: Settlement, note: str | None = None) -> None:
    """Capture, forfeit or release the credits that are reserved for a job. The database allows this once."""
    reserved = select(entries.c.user_id, entries.c.job_id, literal(entry), entries.c.amount, literal(note)).where(
        entries.c.job_id == job_id, entries.c.entry == "reserve"
    )
    # `at` is left out, so that the column's default applies and not the time of the reserve.
    written = tx.execute(entries.insert().from_select(["user_id", "job_id", "entry", "amount", "note"], reserved))
    if written.rowcount != 1:
        raise StudioError(
            f"Cannot {entry} credits of job {job_id}: none are reserved. Look at the job's history and run `check`."
        )


def balance(tx: Connection, user_id: int) -> Balance:
    """A user's balance."""
    return _balance(tx.execute(_BALANCES.where(balances.c.user_id == user_id)).mappings().one_or_none())


def balance_versions(tx: Connection, user_ids: Collection[int]) -> dict[int, BalanceVersion]:
    """The balances of these users, with their versions."""
    found = tx.execute(_BALANCES.add_columns(balances.c.user_id).where(balances.c.user_id.in_(user_ids))).mappings()
    rows = {row["user_id"]: row for row in found}
    return {
        id: BalanceVersion(sum(rows[id][each] for each in get_args(Entry)) if id in rows else 0, _balance(rows.get(id)))
        for id in user_ids
    }


def balances_from_entries(tx: Connection) -> dict[int, Balance]:
    """Every user's balance, computed from the ledger, which is authoritative. It reads every entry."""
    sums: dict[int, dict[str, int]] = {}
    for user_id, entry, total in tx.execute(
        select(entries.c.user_id, entries.c.entry, func.sum(entries.c.amount)).group_by(
            entries.c.user_id, entries.c.entry
        )
    ):
        sums.setdefault(user_id, {})[entry] = int(total)
    return {user_id: _balance_of(**of_user) for user_id, of_user in sums.items()}


_SUMS: list[ColumnElement[Any]] = [balances.c[each] for each in get_args(Entry)]
_BALANCES: Select[Any] = select(*_SUMS)


def _balance(row: RowMapping | None) -> Balance:
    return _balance_of() if row is None else _balance_of(*(int(row[each]) for each in get_args(Entry)))


def _balance_of(grant: int = 0, reserve: int = 0, capture: int = 0, forfeit: int = 0, release: int = 0) -> Balance:
    return Balance(grant, grant - reserve + release, reserve - capture - forfeit - release, capture, forfeit)


def statement(tx: Connection, user_id: int, limit: int = 50) -> list[LedgerEntry]:
    """A user's entries, newest first."""
    columns = entries.c.at, entries.c.entry, entries.c.amount, entries.c.job_id, entries.c.note
    rows = tx.execute(select(*columns).where(entries.c.user_id == user_id).order_by(entries.c.id.desc()).limit(limit))
    return [LedgerEntry(*row) for row in rows]

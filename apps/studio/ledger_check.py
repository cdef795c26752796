"""The ledger check: verifies the rules for all ledger entries, jobs, orders, assets and reviews."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, literal, select, union_all

from apps.common.database import engine_table, read_only

from . import ledger
from .jobs import SAFE_BLOCK, Studio
from .ledger import SETTLEMENTS, Balance
from .tables import assets, entries, orders, reviews, users

SETTLED_BY = {"completed": "capture", "rejected": "forfeit", "dead_letter": "release"}
"""The ledger entry that settles a job in each final state. An open job has no settlement."""


@dataclass(frozen=True)
class Fault:
    """A broken rule."""

    rule: str
    job_id: str | None
    user: str | None
    sentence: str


def check(studio: Studio) -> tuple[int, list[Fault]]:
    """Return the number of ledger entries and all faults, read from one snapshot."""
    engine = read_only(studio.engine)
    if engine.dialect.name == "postgresql":
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.begin() as tx:
        checked = tx.scalar(select(func.count()).select_from(entries)) or 0
        return checked, [
            *_check_balances(tx),
            *_check_jobs(tx, studio.image.name),
            *_check_rejections(tx, studio.image.name),
            *_check_orphans(tx, studio.image.name),
            *_check_reviews(tx),
        ]


# ---------------------------------------------------------------- each user
def _check_balances(tx: Connection) -> Iterator[Fault]:
    """No balance is negative, every granted credit is accounted for, and stored balances match the ledger.

    Reserved credits are recounted from the jobs that have not ended.
    """
    job = engine_table(tx.dialect, "jobs", "id", "state")
    waiting = (
        select(entries.c.user_id, func.sum(entries.c.amount))
        .join(job, job.c.id == entries.c.job_id)
        .where(entries.c.entry == "reserve", job.c.state.not_in(SETTLED_BY))
        .group_by(entries.c.user_id)
    )
    reserved = {user_id: int(amount) for user_id, amount in tx.execute(waiting)}
    truth, nothing = ledger.balances_from_entries(tx), Balance(0, 0, 0, 0, 0)
    for user_id, name in tx.execute(select(users.c.id, users.c.name).order_by(users.c.id)).all():
        has, stored = truth.get(user_id, nothing), ledger.balance(tx, user_id)
        if stored != has:
            sentence = (
                f"{name} has {has.available} credits available in the ledger, "
                f"but {stored.available} in the stored balance."
            )
            yield Fault("balance_of_ledger", None, name, sentence)
        for what, amount in (("available", has.available), ("reserved", has.reserved)):
            if amount < 0:
                yield Fault("never_negative", None, name, f"{name} has {amount} credits {what}.")
        parts = has.available + reserved.get(user_id, 0) + has.captured + has.forfeited
        if has.granted != parts:
            yield Fault(
                "granted_is_somewhere",
                None,
                name,
                f"{name} was granted {has.granted} credits, but the entries add up to {parts}.",
            )


# ---------------------------------------------------------------- each job
def _check_jobs(tx: Connection, kind: str) -> Iterator[Fault]:
    for row in tx.execute(_jobs_with_entries(tx, kind)):
        if row.order_user is None:
            yield Fault("job_has_order", row.id, None, f"Job {row.id} has no order, so its user is unknown.")
            continue
        for rule, sentence in _job_faults(row):
            yield Fault(rule, row.id, row.name, f"Job {row.id} of {row.name} is {row.state}, {sentence}.")


def _job_faults(row: Row[Any]) -> Iterator[tuple[str, str]]:
    """Yield each broken rule of one job, with a description."""
    if (row.reserves, row.reserved) != (1, row.cost):
        yield (
            "reserved_once",
            f"costs {row.cost} credits, but {row.reserved or 0} were reserved in {row.reserves or 0} entries",
        )
    if row.entries and (row.first_user, row.last_user) != (row.order_user, row.order_user):
        yield "same_user", "but has entries of another user"
    wants = SETTLED_BY.get(row.state)
    has = {entry: count for entry in SETTLEMENTS if (count := getattr(row, entry))}
    if has != ({wants: 1} if wants else {}):
        found = ", ".join(f"{count} {entry}" for entry, count in has.items())
        yield "settled_by_state", f"which requires {wants or 'no settlement'}, but has {found or 'none'}"
    elif wants and row.settled != row.reserved:
        yield "settled_as_reserved", f"reserved {row.reserved} credits, but settled {row.settled}"
    if (row.asset_user is not None) != (row.state == "completed"):
        yield "asset_if_completed", "but has an asset" if row.asset_user is not None else "but has no asset"
    elif row.asset_user not in (None, row.order_user):
        yield "same_user", "but its asset belongs to another user"


def _jobs_with_entries(tx: Connection, kind: str) -> Select[Any]:
    """Select each job with its order, its asset and the sums of its entries."""
    job = engine_table(tx.dialect, "jobs", "id", "kind", "state")
    reserve = entries.c.entry == "reserve"
    counts = [func.sum(case((entries.c.entry == entry, 1), else_=0)).label(entry) for entry in SETTLEMENTS]
    sums = (
        select(
            entries.c.job_id,
            func.count().label("entries"),
            func.sum(case((reserve, 1), else_=0)).label("reserves"),
            func.sum(case((reserve, entries.c.amount), else_=0)).label("reserved"),
            func.sum(case((reserve, 0), else_=entries.c.amount)).label("settled"),
            func.min(entries.c.user_id).label("first_user"),
            func.max(entries.c.user_id).label("last_user"),
            *counts,
        )
        .where(entries.c.job_id.is_not(None))
        .group_by(entries.c.job_id)
        .subquery()
    )
    joined = job.outerjoin(orders, orders.c.job_id == job.c.id).outerjoin(users, users.c.id == orders.c.user_id)
    joined = joined.outerjoin(sums, sums.c.job_id == job.c.id).outerjoin(assets, assets.c.job_id == job.c.id)
    columns: list[ColumnElement[Any]] = [
        job.c.id,
        job.c.state,
        orders.c.user_id.label("order_user"),
        orders.c.cost,
        users.c.name,
        assets.c.user_id.label("asset_user"),
        *(column for column in sums.c if column.name != "job_id"),
    ]
    return select(*columns).select_from(joined).where(job.c.kind == kind).order_by(job.c.id)


def _check_rejections(tx: Connection, kind: str) -> Iterator[Fault]:
    """Check that the audit gives safety as the reason of each rejection; only then are credits not refunded."""
    job, audit = (
        engine_table(tx.dialect, "jobs", "id", "kind", "state"),
        engine_table(tx.dialect, "audit", "job_id", "event", "reason"),
    )
    fits = job.c.kind == kind, job.c.state == "rejected", audit.c.event == "reject"
    for id, reason in tx.execute(
        select(job.c.id, audit.c.reason).join(audit, audit.c.job_id == job.c.id).where(*fits).order_by(job.c.id)
    ):
        if SAFE_BLOCK not in (reason or ""):
            yield Fault(
                "rejected_as_unsafe", id, None, f"Job {id} is rejected, but its audit does not contain {SAFE_BLOCK}."
            )


# ---------------------------------------------------------------- orphans and reviews
def _check_orphans(tx: Connection, kind: str) -> Iterator[Fault]:
    """Check that each order, asset, review and ledger entry belongs to a job."""
    job = engine_table(tx.dialect, "jobs", "id", "kind")
    every = select(job.c.id).where(job.c.kind == kind)
    kept = [
        ("an order", orders.c.job_id),
        ("an asset", assets.c.job_id),
        ("a review", reviews.c.job_id),
        ("a ledger entry", entries.c.job_id),
    ]
    asked = [
        select(literal(what), column).where(column.is_not(None), column.not_in(every)).distinct()
        for what, column in kept
    ]
    for what, id in tx.execute(union_all(*asked)):
        yield Fault("of_a_job", id, None, f"There is {what} for job {id}, but no such job.")


def _check_reviews(tx: Connection) -> Iterator[Fault]:
    """Check that only dead letters have reviews, and that each redriven job is the successor in a review."""
    job = engine_table(tx.dialect, "jobs", "id", "state", "redrive_of")
    decided = select(reviews.c.job_id, reviews.c.decision, reviews.c.successor, job.c.state).join(
        job, job.c.id == reviews.c.job_id
    )
    for id, decision, successor, state in tx.execute(decided):
        if state != "dead_letter":
            yield Fault(
                "review_of_dead_letter", id, None, f"Job {id} was {decision}, but is {state} and not a dead letter."
            )
        if (decision == "redriven") != (successor is not None):
            yield Fault(
                "successor_if_redriven",
                id,
                None,
                f"Job {id} was {decision}, but its successor is {successor or 'not set'}.",
            )
    again = job.outerjoin(reviews, reviews.c.successor == job.c.id)
    repeats = select(job.c.id, job.c.redrive_of, reviews.c.job_id).select_from(again)
    for id, old, reviewed in tx.execute(repeats.where(job.c.redrive_of.is_distinct_from(reviews.c.job_id))):
        yield Fault(
            "successor_if_redriven",
            id,
            None,
            f"Job {id} redrives {old or 'no job'}, but is the successor of {reviewed or 'no job'}.",
        )

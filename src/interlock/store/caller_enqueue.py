"""Enqueue and redrive inside a transaction that the caller opened, in a savepoint of it."""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..core.driver import adrive, drive
from ..errors import UsageError
from .caller_connection import Session, check_instance, check_psycopg, kind_of, runner_for
from .commit_boundary import Run
from .enqueue_plan import Rows, Statement, enqueueing
from .flow_types import NewBatch
from .open_transactions import inside
from .queryfile import to_pyformat
from .redrive_plan import redriving
from .retry import cannot_write, write_unavailable
from .selection import Redriven
from .types import Enqueued, NewJob

T = TypeVar("T")
Admit = Callable[[Any, NewJob], None]

SAVE = Statement("SAVEPOINT interlock_enqueue", {}, answers=False)
UNDO = Statement("ROLLBACK TO SAVEPOINT interlock_enqueue", {}, answers=False)
KEEP = Statement("RELEASE SAVEPOINT interlock_enqueue", {}, answers=False)


def admitting(store: object, admit: Admit | None, tx: object) -> Callable[[NewJob], None] | None:
    """A kind's `admit` function, bound to this transaction."""
    if admit is None:
        return None
    check = admit

    def admitted(job: NewJob) -> None:
        with inside(store, tx):
            check(tx, job)

    return admitted


def enqueue(
    store: Session, conn: object, jobs: Sequence[NewJob], admit: Admit | None, batches: Sequence[NewBatch] = ()
) -> list[Enqueued]:
    """Enqueue in the caller's transaction."""
    plan = enqueueing(store.dialect, jobs, admitting(store, admit, conn), batches)
    return _in_savepoint(runner_for(conn, store), plan)


def redrive(
    store: Session, conn: object, jobs: Sequence[NewJob], admit: Admit | None, *, again: bool, reason: str | None
) -> list[Redriven]:
    """Redrive jobs in the caller's transaction."""
    plan = redriving(store.dialect, jobs, admitting(store, admit, conn), again=again, reason=reason)
    return _in_savepoint(runner_for(conn, store), plan)


def _in_savepoint(run: Run, plan: Generator[Statement, Rows, T]) -> T:
    """Run the statements of the plan. If one fails, roll back to the savepoint before them."""
    run(SAVE)
    try:
        answer = drive(plan, run)
    except BaseException as error:
        if cannot_write(error):
            # A full disk may have ended the transaction, and its savepoints.
            with suppress(Exception):
                run(UNDO)
                run(KEEP)
            raise write_unavailable(error) from error
        run(UNDO)
        run(KEEP)
        raise
    run(KEEP)
    return answer


async def aenqueue(
    store: Session, conn: object, jobs: Sequence[NewJob], admit: Admit | None, batches: Sequence[NewBatch] = ()
) -> list[Enqueued]:
    """`enqueue`, also for async connections."""
    library, name = kind_of(conn)
    if library == "sqlalchemy" and name in ("AsyncSession", "AsyncConnection"):
        connection: Any = conn

        def work(sync: object) -> list[Enqueued]:
            return enqueue(store, sync, jobs, admit, batches)

        answers: list[Enqueued] = await connection.run_sync(work)
        return answers
    if (library, name) != ("psycopg", "AsyncConnection"):
        return enqueue(store, conn, jobs, admit, batches)
    if admit is not None:
        raise UsageError(
            "This kind has an `admit` function, which cannot use an async psycopg connection: "
            "enqueue with a sync one, or an AsyncSession."
        )
    return await _enqueue_awaiting(store, conn, jobs, batches)


async def _enqueue_awaiting(
    store: Session, conn: Any, jobs: Sequence[NewJob], batches: Sequence[NewBatch]
) -> list[Enqueued]:
    from psycopg.rows import tuple_row

    check_psycopg(conn, store)

    async def run(statement: Statement) -> Rows:
        cursor = conn.cursor(row_factory=tuple_row)
        await cursor.execute(to_pyformat(statement.sql), statement.params)
        return await cursor.fetchall() if statement.answers else ()

    check_instance(await adrive(store.find_instance(), run), store)
    await run(SAVE)
    try:
        answer = await adrive(enqueueing(store.dialect, jobs, None, batches), run)
    except BaseException as error:
        if cannot_write(error):
            with suppress(Exception):
                await run(UNDO)
                await run(KEEP)
            raise write_unavailable(error) from error
        await run(UNDO)
        await run(KEEP)
        raise
    await run(KEEP)
    return answer

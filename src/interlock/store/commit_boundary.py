"""Carries out a move with a user's function in its transaction, for both stores and every kind of connection."""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from ..core.job import Job
from ..core.transition import Move, Take
from ..errors import CommitTimeout, InterlockError, Unavailable
from .enqueue_plan import Rows, Statement
from .open_transactions import inside
from .retry import cannot_write
from .types import Refusal

Run = Callable[[Statement], Rows]


class MoveWriter(Protocol):
    """The statements of one move, in one dialect."""

    @property
    def session(self) -> object:
        """The store's session, by which calls of the app find their open transaction."""
        ...

    def lock(self, run: Run, move: Move | Take) -> Job | None:
        """Lock the rows until the transaction ends and return the job; None if the fence does not match."""
        ...

    def write(self, run: Run, move: Move | Take) -> bool:
        """Carry out the move in this transaction. Return False if the rows have changed."""
        ...

    def find_refusal(self, run: Run, move: Move | Take) -> Refusal | None:
        """Return why the move is refused; None if it was carried out before."""
        ...


class FenceRefused(Exception):
    """Ends the transaction of a refused commit, so that it is rolled back."""

    def __init__(self, refusal: Refusal | None) -> None:
        super().__init__()
        self.refusal = refusal


MARK = Statement("SAVEPOINT interlock_commit", {}, answers=False)
RELEASE = Statement("RELEASE SAVEPOINT interlock_commit", {}, answers=False)


def too_long(move: Move | Take, timeout: float) -> CommitTimeout:
    return CommitTimeout(
        f"The function that ran inside the commit of job {move.job_id} took longer than the {timeout:g} s that "
        "commit_timeout allows: its writes were rolled back, and the job was not moved. Do slow work before the "
        "commit, or increase commit_timeout."
    )


def transaction_ended(move: Move | Take) -> InterlockError:
    return InterlockError(
        f"The function that ran inside the commit of job {move.job_id} ended the transaction itself, or ignored the "
        "error of a statement; it must do neither. The job was not moved."
    )


def _call(body: Callable[[Any, Job], None], tx: Any, job: Job) -> None:
    """Call the user's function. `SystemExit` and similar exceptions count as its errors, except Ctrl-C.

    `Unavailable` counts as its error too, because it comes from another database: ours is reachable here. A full disk
    does not count, because the disk may fill up while the function writes; the commit is then retried.
    """
    try:
        body(tx, job)
    except Unavailable as error:
        if cannot_write(error):
            raise
        raise InterlockError(f"A function in the commit of job {job.id} could not use a database: {error}") from error
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise RuntimeError(
            f"a function that ran inside the commit of job {job.id} raised {type(error).__name__}"
        ) from error


def committing(  # noqa: PLR0917
    writer: MoveWriter, run: Run, move: Move | Take, body: Callable[[Any, Job], None], tx: Any, timeout: float
) -> None:
    """Lock the rows, check the fence, call `body`, and write.

    Raise `FenceRefused` if the fence does not match, `CommitTimeout` if `body` took too long. The caller rolls back.
    """
    job = writer.lock(run, move)
    if job is None:
        raise FenceRefused(writer.find_refusal(run, move))
    run(MARK)
    call_in_time(writer.session, body, tx, job, move, timeout)
    try:
        run(RELEASE)
    except Exception as error:  # the savepoint does not exist; each driver raises its own class
        raise transaction_ended(move) from error
    if not writer.write(run, move):
        raise FenceRefused(writer.find_refusal(run, move))


def call_in_time(  # noqa: PLR0917
    session: object, body: Callable[[Any, Job], None], tx: Any, job: Job, move: Move | Take, timeout: float
) -> None:
    """Call `body` inside its transaction. Raise `CommitTimeout` if it took too long."""
    began = monotonic()
    with inside(session, tx):
        _call(body, tx, job)
    if monotonic() - began > timeout:
        raise too_long(move, timeout)

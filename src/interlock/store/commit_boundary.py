"""A move with the caller's function inside its transaction, written once for both stores and for every kind of connection."""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from ..errors import CommitTimeout, InterlockError, Unavailable
from ..job import Job
from ..move import Move, Take
from ..records import Refusal
from .again import is_unable
from .enqueue import Rows, Statement
from .inside import inside

Run = Callable[[Statement], Rows]


class Settling(Protocol):
    """What a store offers to carry out one move statement by statement."""

    def lock(self, run: Run, move: Move | Take) -> Job | None:
        """The job, with its rows held until the transaction ends, if the fence still matches."""
        ...

    def write(self, run: Run, move: Move | Take) -> bool:
        """Carry the move out, in this transaction."""
        ...

    def standing(self, run: Run, move: Move | Take) -> Refusal | None:
        """What stands in the move's place; None if it is just what the move asked for."""
        ...


class Refused(Exception):
    """Ends the transaction of a refused commit, so that it is rolled back."""

    def __init__(self, refusal: Refusal | None) -> None:
        super().__init__()
        self.refusal = refusal


MARK = Statement("SAVEPOINT interlock_commit", {}, answers=False)
RELEASE = Statement("RELEASE SAVEPOINT interlock_commit", {}, answers=False)


def too_long(move: Move | Take, timeout: float) -> CommitTimeout:
    return CommitTimeout(
        f"the function that ran inside the commit of job {move.job_id} took longer than the {timeout:g} s that commit_timeout allows: what it wrote was rolled "
        "back, and the job was not moved. Do slow work before the commit, or allow more.")


def _called(body: Callable[[Any, Job], None], tx: Any, job: Job) -> None:
    """Call the user's function. `SystemExit` and the like count as its error, except Ctrl-C.

    `Unavailable` from another database also counts as its error, since our own database is reachable here. A full disk
    does not: it may fill up while the function writes, and then the commit is retried.
    """
    try:
        body(tx, job)
    except Unavailable as error:
        if is_unable(error):
            raise
        raise InterlockError(f"a function in the commit of job {job.id} could not use a database: {error}") from error
    except Exception:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise RuntimeError(f"a function that ran inside the commit of job {job.id} raised {type(error).__name__}") from error


def committing(store: Settling, run: Run, move: Move | Take, body: Callable[[Any, Job], None], tx: Any, timeout: float) -> None:  # noqa: PLR0917
    """Lock, check, call, write. Raises `Refused` where the fence does not match, `CommitTimeout` where `body` took too long; the caller then rolls back."""
    job = store.lock(run, move)
    if job is None:
        raise Refused(store.standing(run, move))
    run(MARK)
    began = monotonic()
    with inside(store, tx):
        _called(body, tx, job)
    if monotonic() - began > timeout:
        raise too_long(move, timeout)
    try:
        run(RELEASE)
    except Exception as error:  # whatever the driver calls it: the savepoint is gone
        raise InterlockError(
            f"the function that ran inside the commit of job {move.job_id} ended the transaction itself, or went on after one of its "
            "statements had failed; it must do neither. The job was not moved.") from error
    if not store.write(run, move):
        raise Refused(store.standing(run, move))

"""Enqueue and claim on SQLite."""

from collections.abc import Callable, Sequence
from typing import Any

from ...core.driver import drive
from .. import caller_enqueue
from ..contract import Subscription
from ..enqueue_plan import enqueueing, has_key
from ..flow_types import NewBatch
from ..limited_claim import LimitedClaim
from ..listener import Listeners
from ..plain_path import Fallbacks
from ..tx import PlainTx
from ..types import ClaimRule, Enqueued, Lease, NewJob
from . import rows
from .claim import SqliteClaims
from .control import SqliteControl
from .flow import SqliteFlow
from .listening import POLL_EVERY, SqliteListener
from .session import SqliteSession

Admit = Callable[[Any, NewJob], None]


class SqliteQueue:
    def __init__(self, session: SqliteSession, control: SqliteControl, flow: SqliteFlow, listeners: Listeners) -> None:
        self._session = session
        self._listeners = listeners
        self.claims = SqliteClaims(session, control, flow)
        self.poll_every = POLL_EVERY

    @property
    def fallbacks(self) -> Fallbacks:
        """Counts the jobs and claims that did not take the plain statement."""
        return self.claims.fallbacks

    # ------------------------------------------------------------ enqueue
    def enqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        conn: object | None = None,
        admit: Admit | None = None,
        batches: Sequence[NewBatch] = (),
    ) -> list[Enqueued]:
        session = self._session
        session.check()
        if conn is not None:
            session.file.check_place()
            return caller_enqueue.enqueue(session, conn, jobs, admit, batches)
        if not jobs and not batches:
            return []
        if (
            admit is None
            and not batches
            and len(jobs) == 1
            and jobs[0].plain
            and not (has_key(jobs[0]) or jobs[0].inherits)
        ):
            self._insert_one(jobs[0])
            return [Enqueued(jobs[0].id, True)]
        with session.file.write_with_caller_code() as own:
            admitted = caller_enqueue.admitting(session, admit, PlainTx(own, session.file.converting))
            return drive(enqueueing(session.dialect, jobs, admitted, batches), session.file.converting_runner(own))

    def _insert_one(self, job: NewJob) -> None:
        """Store one job without keys, by statements that need no JSON list."""
        session = self._session
        with session.file.write() as conn:
            given = rows.new_job(job, session.timestamp())
            conn.execute(session.queries["enqueue.one"], given)
            conn.execute(session.queries["enqueue.one_audit"], given)

    async def aenqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        conn: object,
        admit: Admit | None = None,
        batches: Sequence[NewBatch] = (),
    ) -> list[Enqueued]:
        self._session.check()
        self._session.file.check_place()
        return await caller_enqueue.aenqueue(self._session, conn, jobs, admit, batches)

    # ------------------------------------------------------------ claim
    def claim(
        self,
        by: str,
        claim_rules: Sequence[ClaimRule],
        queues: Sequence[str],
        limit: int,
        *,
        suspects: int | None = None,
        alone: bool = True,
    ) -> list[Lease]:
        self._session.check()
        if not claim_rules or not queues or limit < 1:
            return []
        most = limit if suspects is None else max(0, min(suspects, limit))
        return self.claims.claim(by, LimitedClaim(claim_rules, queues, limit, most), alone=alone)

    def due_in(self, claim_rules: Sequence[ClaimRule], queues: Sequence[str]) -> float | None:
        self._session.check()
        return self.claims.due_in(claim_rules, queues) if claim_rules and queues else None

    def listen(self, wake: Callable[[], None], on_open: Callable[[], None] | None = None) -> Subscription:
        self._session.check()
        return self._listeners.open(
            SqliteListener(self._session.file, self.poll_every, wake, on_open, self._listeners.forget)
        )

"""Enqueue and claim on PostgreSQL."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ...core.driver import drive
from .. import caller_enqueue
from ..contract import Subscription
from ..enqueue_plan import CHUNK, are_alike, enqueueing
from ..flow_types import NewBatch
from ..limited_claim import LimitedClaim
from ..listener import Listeners
from ..plain_path import Fallbacks
from ..tx import PlainTx
from ..types import ClaimRule, Enqueued, Lease, NewJob
from .claim import PostgresClaims
from .connection import runner
from .control import PostgresControl
from .flow import PostgresFlow
from .listening import PROBE_AFTER, PostgresListener
from .session import PostgresSession

Admit = Callable[[Any, NewJob], None]


class PostgresQueue:
    def __init__(
        self, session: PostgresSession, control: PostgresControl, flow: PostgresFlow, listeners: Listeners
    ) -> None:
        self._session = session
        self._listeners = listeners
        self.claims = PostgresClaims(session, control, flow)
        self.probe_after = PROBE_AFTER

    @property
    def fallbacks(self) -> Fallbacks:
        """Counts the claims that did not take the plain statement."""
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
            return caller_enqueue.enqueue(session, conn, jobs, admit, batches)
        if admit is None and not batches and self._insert_at_once(jobs):
            return [Enqueued(job.id, True) for job in jobs]

        def work(own: psycopg.Connection[Any]) -> list[Enqueued]:
            admitted = caller_enqueue.admitting(session, admit, PlainTx(own))
            return drive(enqueueing(session.dialect, jobs, admitted, batches), runner(own))

        return (session.users if admit else session.pool).transact(work)

    def _insert_at_once(self, jobs: Sequence[NewJob]) -> bool:
        """Store jobs that are alike with one statement, in one round trip. False if nothing was stored."""
        if not 0 < len(jobs) <= CHUNK or jobs[0].inherits or jobs[0].after or not are_alike(jobs):
            return False
        (statement,) = self._session.dialect.insert(jobs)
        return len(self._session.fixed.with_fixed_plans(self._session.fixed_plans, statement)[0]) > 0

    async def aenqueue(
        self,
        jobs: Sequence[NewJob],
        *,
        conn: object,
        admit: Admit | None = None,
        batches: Sequence[NewBatch] = (),
    ) -> list[Enqueued]:
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
        session = self._session
        session.check()
        channel = f"{session.schema}.jobs"
        return self._listeners.open(
            PostgresListener(session.pool.url, channel, self.probe_after, wake, on_open, self._listeners.forget)
        )

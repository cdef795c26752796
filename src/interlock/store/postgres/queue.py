"""Enqueue and claim on PostgreSQL."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ...core.driver import drive
from ...errors import Unavailable
from .. import caller_connection
from ..bisect import bisect
from ..codec import JOB_WIDTH, array, lease, text_array
from ..contract import Subscription
from ..enqueue_plan import CHUNK, Rows, Statement, are_alike, enqueueing
from ..listener import Listeners
from ..plain_path import Fallbacks, plain_claim
from ..tx import PlainTx
from ..types import ClaimRule, Enqueued, Lease, NewJob
from . import columns
from .connection import Run, runner
from .control import PostgresControl
from .listening import PROBE_AFTER, PostgresListener
from .plain_claim import ClaimBounds, read_lease
from .pool import is_database_error
from .session import PostgresSession, as_is

SPECIAL_FOR = 1.0
"""Seconds for which claims of these kinds and queues do not try the plain statement, after it found special jobs."""
SKIP_FOR = 60.0
"""Seconds for which a claim skips a job that cannot be claimed."""
_log = logging.getLogger("interlock")

Admit = Callable[[Any, NewJob], None]


class PostgresQueue:
    def __init__(self, session: PostgresSession, control: PostgresControl, listeners: Listeners) -> None:
        self._session = session
        self._control = control
        self._listeners = listeners
        self._skipped: dict[str, float] = {}
        self.plain = True
        """Whether claims try the plain statement first."""
        self.fallbacks = Fallbacks("claim")
        self._bounds = ClaimBounds()
        self.special_for = SPECIAL_FOR
        self._special_until: dict[tuple[str, str], float] = {}
        self.probe_after = PROBE_AFTER

    # ------------------------------------------------------------ enqueue
    def enqueue(
        self, jobs: Sequence[NewJob], *, conn: object | None = None, admit: Admit | None = None
    ) -> list[Enqueued]:
        session = self._session
        session.check()
        if conn is not None:
            return caller_connection.enqueue(session, conn, jobs, admit)
        if admit is None and self._insert_at_once(jobs):
            return [Enqueued(job.id, True) for job in jobs]

        def work(own: psycopg.Connection[Any]) -> list[Enqueued]:
            admitted = caller_connection.admitting(session, admit, PlainTx(own))
            return drive(enqueueing(session.dialect, jobs, admitted), runner(own))

        return (session.users if admit else session.pool).transact(work)

    def _insert_at_once(self, jobs: Sequence[NewJob]) -> bool:
        """Store jobs that are alike with one statement, in one round trip. False if nothing was stored."""
        if not 0 < len(jobs) <= CHUNK or jobs[0].inherits or not are_alike(jobs):
            return False
        (statement,) = self._session.dialect.insert(jobs)
        return len(self._session.fixed.with_fixed_plans(self._session.fixed_plans, statement)[0]) > 0

    async def aenqueue(self, jobs: Sequence[NewJob], *, conn: object, admit: Admit | None = None) -> list[Enqueued]:
        return await caller_connection.aenqueue(self._session, conn, jobs, admit)

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
        given = columns.claim_rules(claim_rules) | {
            "queues": text_array(sorted(set(queues))),
            "limit": limit,
            "suspects": limit if suspects is None else max(0, min(suspects, limit)),
            "alone": alone,
            "by": by,
            "only": None,
        }
        if (plain := self._claim_plainly(given, claim_rules, queues)) is not None:
            return plain
        noted = any(not rule.path for rule in claim_rules)
        try:
            return self._claim(given, by, noted=noted)
        except psycopg.Error as error:
            if is_database_error(error):
                raise
        picked = [row[0] for row in self._session.run_with_fixed_plan("pick", given | {"skipped": self._skipping()})]
        leases: list[Lease] = []
        for id, culprit in bisect(
            picked,
            lambda ids: leases.extend(self._claim(given | {"only": array(ids)}, by, noted=noted)),
            is_database_error,
        ):
            self._skip(id, culprit)
        return leases

    def _claim_plainly(
        self, given: dict[str, Any], claim_rules: Sequence[ClaimRule], queues: Sequence[str]
    ) -> list[Lease] | None:
        """Claim by the plain statement. None if it does not fit, or if a row cannot be claimed: nothing was claimed."""
        asked, now = (given["kinds"], given["queues"]), time.monotonic()
        if not self.plain or self._skipped or not plain_claim(claim_rules) or self._special_until.get(asked, 0.0) > now:
            return None
        bounds = self._bounds.parameters({rule.kind for rule in claim_rules}, set(queues))
        try:
            rows = self._session.run_with_fixed_plan("claim.plain", given | bounds)
        except psycopg.Error as error:
            if is_database_error(error):
                raise
            self.fallbacks.add(str(error))
            return None
        if rows[0][0]:
            self._special_until[asked] = now + self.special_for
            self.fallbacks.add("a limit, a paused queue, a job with a TTL or a suspect")
            return None
        found = [row for row in rows if row[1] is not None]
        self._bounds.learn(found, claim_rules, given["limit"])
        return [read_lease(row, claim_rules[int(row[2]) - 1], given["by"]) for row in found]

    def _claim(self, given: dict[str, Any], by: str, *, noted: bool) -> list[Lease]:
        session = self._session
        limits = session.statement("limits", {"kinds": given["kinds"], "queues": given["queues"]})
        claim = session.statement("claim", given | {"skipped": self._skipping()})
        if noted:
            rows = session.pool.transact(lambda conn: self._claim_with_notes(runner(conn), limits, claim))
        else:
            rows = session.fixed.with_fixed_plans(session.fixed_plans, limits, claim)[1]
        return [
            lease(row, as_is, holder=1, status=row[JOB_WIDTH], owner=by, seconds=row[JOB_WIDTH + 1]) for row in rows
        ]

    def _claim_with_notes(self, run: Run, limits: Statement, claim: Statement) -> Rows:
        """A claim in which some jobs make no transition; an audit note records it."""
        run(self._session.statement("fixed_plans", {"local": True}))
        run(limits)
        rows = run(claim)
        if unmoved := [row[0] for row in rows if row[-2] == 0]:
            run(self._session.statement("claim.note", {"id": array(unmoved)}, answers=False))
        return rows

    def _skipping(self) -> str:
        now = time.monotonic()
        self._skipped = {id: until for id, until in list(self._skipped.items()) if until > now}
        return array(self._skipped)

    def _skip(self, id: str, error: BaseException) -> None:
        """Skip a row that cannot be claimed, so that it does not stop the others."""
        self._skipped[id] = time.monotonic() + SKIP_FOR
        _log.error("Job %s cannot be claimed: %s. This worker skips it for %d s.", id, error, SKIP_FOR)
        try:
            self._control.add_note(id, attempt=None, event="set_aside", actor="store", reason=str(error))
        except (psycopg.Error, Unavailable):
            _log.exception("Job %s: the audit note about the failed claim could not be stored.", id)

    # ------------------------------------------------------------ when to claim
    def due_in(self, claim_rules: Sequence[ClaimRule], queues: Sequence[str]) -> float | None:
        self._session.check()
        if not claim_rules or not queues:
            return None
        given = columns.claim_rules(claim_rules) | {
            "queues": text_array(sorted(set(queues))),
            "suspects": 1,
            "skipped": self._skipping(),
        }
        seconds: float | None = self._session.run_with_fixed_plan("due_in", given)[0][0]
        return seconds

    def listen(self, wake: Callable[[], None], on_open: Callable[[], None] | None = None) -> Subscription:
        session = self._session
        session.check()
        channel = f"{session.schema}.jobs"
        return self._listeners.open(
            PostgresListener(session.pool.url, channel, self.probe_after, wake, on_open, self._listeners.forget)
        )

"""Enqueue and claim on SQLite.

A claim picks due jobs with one read and writes them in the same transaction, all jobs of one claim rule at once.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...core.driver import drive
from .. import caller_connection
from ..bisect import bisect
from ..codec import lease
from ..commit_boundary import Run
from ..contract import Subscription
from ..enqueue_plan import enqueueing, has_key
from ..listener import Listeners
from ..plain_path import Fallbacks, plain_claim
from ..tx import PlainTx
from ..types import ClaimRule, Enqueued, Lease, NewJob
from . import rows
from .control import SqliteControl
from .file import runner
from .listening import POLL_EVERY, SqliteListener
from .session import SqliteSession
from .timestamps import Timestamp, when

SKIP_FOR = timedelta(seconds=60)
"""How long a claim skips a job that cannot be claimed."""
_log = logging.getLogger("interlock")

Admit = Callable[[Any, NewJob], None]


class Pick(NamedTuple):
    """A row of the query `pick`."""

    id: str
    kind: str
    state: str
    queue: str
    suspect: int
    plain: int


class SqliteQueue:
    def __init__(self, session: SqliteSession, control: SqliteControl, listeners: Listeners) -> None:
        self._session = session
        self._control = control
        self._listeners = listeners
        self._skipped: dict[str, datetime] = {}
        self._full = False
        """Whether the last claim was full, so that more jobs are probably due."""
        self.poll_every = POLL_EVERY
        self.plain = True
        """Whether jobs of the plain case take the statement `claim.plain`. It changes no result."""
        self.fallbacks = Fallbacks("claim")

    # ------------------------------------------------------------ enqueue
    def enqueue(
        self, jobs: Sequence[NewJob], *, conn: object | None = None, admit: Admit | None = None
    ) -> list[Enqueued]:
        session = self._session
        session.check()
        if conn is not None:
            session.file.check_place()
            return caller_connection.enqueue(session, conn, jobs, admit)
        if not jobs:
            return []
        if admit is None and len(jobs) == 1 and not (has_key(jobs[0]) or jobs[0].inherits):
            self._insert_one(jobs[0])
            return [Enqueued(jobs[0].id, True)]
        with session.file.write_with_caller_code() as own:
            admitted = caller_connection.admitting(session, admit, PlainTx(own, session.file.converting))
            return drive(enqueueing(session.dialect, jobs, admitted), session.file.converting_runner(own))

    def _insert_one(self, job: NewJob) -> None:
        """Store one job without keys, by statements that need no JSON list."""
        session = self._session
        with session.file.write() as conn:
            given = rows.new_job(job, session.timestamp())
            conn.execute(session.queries["enqueue.one"], given)
            conn.execute(session.queries["enqueue.one_audit"], given)

    async def aenqueue(self, jobs: Sequence[NewJob], *, conn: object, admit: Admit | None = None) -> list[Enqueued]:
        self._session.check()
        self._session.file.check_place()
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
        most = limit if suspects is None else max(0, min(suspects, limit))
        now = self._session.timestamp()
        self._skipped = {id: until for id, until in list(self._skipped.items()) if until > now.at}
        wanted = {
            "queues": rows.array(sorted(set(queues))),
            "kinds": rows.kinds(claim_rules),
            "now": now.text,
            "limit": limit,
            "most": limit,
            "suspects": most,
            "most_suspects": most,
            "alone": alone,
        }
        # Read first, so that an idle worker does not take the write lock, for which other writers would wait.
        one = wanted | {"limit": 1, "most": 1, "suspects": min(most, 1)}
        if not self._full and not self._session.file.read(lambda run: self._within_limits(run, one, None)):
            return []
        self._full = False
        try:
            claimed = self._claim(wanted, claim_rules, by, None)
        except Exception as error:
            if self._session.file.library.is_database_error(error):
                raise
            return self._claim_around(wanted, claim_rules, by)
        self._full = len(claimed) == limit
        return claimed

    def _claim_around(self, wanted: dict[str, Any], claim_rules: Sequence[ClaimRule], by: str) -> list[Lease]:
        """Claim the other jobs of a batch in which some rows cannot be claimed, and skip those rows for a while."""
        library = self._session.file.library
        leases: list[Lease] = []
        picked = [row[0] for row in self._session.file.read(lambda run: self._pick(run, wanted))]
        culprits = bisect(
            picked,
            lambda ids: leases.extend(self._claim(wanted, claim_rules, by, frozenset(ids))),
            library.is_database_error,
        )
        for id, error in culprits:
            self._skipped[id] = self._session.timestamp().at + SKIP_FOR
            _log.error(
                "Job %s cannot be claimed: %s. This worker skips it for %d s.", id, error, SKIP_FOR.total_seconds()
            )
            try:
                self._control.add_note(id, attempt=None, event="set_aside", actor="store", reason=str(error))
            except library.module.Error:
                _log.exception("Job %s: the audit note about the failed claim could not be stored.", id)
        return leases

    def _claim(
        self, wanted: dict[str, Any], claim_rules: Sequence[ClaimRule], by: str, only: Collection[str] | None
    ) -> list[Lease]:
        with self._session.file.write() as conn:
            run = runner(conn)
            # The clock is read after the wait for the write lock, so that the wait does not shorten the lease.
            now = self._session.timestamp()
            due = self._within_limits(run, wanted | {"now": now.text}, only)
            places = {pick.id: place for place, pick in enumerate(due)}
            plain = self.plain and plain_claim(claim_rules)
            waiting: dict[tuple[str, str, bool], list[str]] = {}
            for pick in due:
                waiting.setdefault((pick.kind, pick.state, plain and bool(pick.plain)), []).append(pick.id)
            claimed: list[Lease] = []
            for rule in claim_rules:
                rest = waiting.get((rule.kind, rule.state, False), [])
                if ids := waiting.get((rule.kind, rule.state, True)):
                    leases = self._claim_by(run, rule, ids, by, now, plain=True)
                    claimed += leases
                    if len(leases) < len(ids):
                        self.fallbacks.add("their rows have changed")
                        rest = [*rest, *set(ids).difference(leased.job.id for leased in leases)]
                if rest:
                    claimed += self._claim_by(run, rule, rest, by, now, plain=False)
        return sorted(claimed, key=lambda leased: places[leased.job.id])

    def _claim_by(
        self, run: Run, rule: ClaimRule, ids: Sequence[str], by: str, now: Timestamp, *, plain: bool
    ) -> list[Lease]:
        """Claim the jobs that wait in the rule's state."""
        session = self._session
        given = {
            "ids": rows.array(ids),
            "kind": rule.kind,
            "lifecycle": rule.lifecycle,
            "state": rule.state,
            "target": rule.target,
            "status": rule.status,
            "arrows": len(rule.path),
            "lifecycle_version": rule.version,
            "by": by,
            "now": now.text,
            "until": now.plus(rule.lease),
        }
        claimed = run(session.statement("claim.plain" if plain else "claim", given))
        if claimed:
            if len(claimed) < len(ids):
                given["ids"] = rows.array(row[0] for row in claimed)
            run(session.statement("claim.execution", given, answers=False))
            for ahead, arrow in zip(range(len(rule.path) - 1, -1, -1), rule.path, strict=True):
                step = {"ahead": ahead, "event": arrow.event, "source": arrow.source, "target": arrow.target}
                run(session.statement("claim.audit", given | step, answers=False))
            if not rule.path:
                run(session.statement("claim.note", given, answers=False))
        if plain:
            return [rows.plain_lease(row, rule, by) for row in claimed]
        return [lease(row, when, holder=1, status=rule.status, owner=by, seconds=rule.lease) for row in claimed]

    def _within_limits(self, run: Run, wanted: dict[str, Any], only: Collection[str] | None) -> list["Pick"]:
        """The jobs to claim, in order.

        If there are limits, all candidates are read, since the first ones may have to be passed over.
        """
        free = {(what, name): left for what, name, left in run(self._session.statement("limits", {}))}
        picked = self._pick(run, wanted | {"most": -1, "most_suspects": -1} if free else wanted)
        if not free and only is None:
            # `pick` itself counts the jobs and the suspects.
            return [Pick._make(row) for row in picked]
        free["suspect", 1] = wanted["suspects"]
        due: list[Pick] = []
        for pick in map(Pick._make, picked):
            if only is not None and pick.id not in only:
                continue
            every = (("kind", pick.kind), ("queue", pick.queue), ("suspect", pick.suspect))
            limited = [limit for limit in every if limit in free]
            if all(free[limit] > 0 for limit in limited):
                due.append(pick)
                for limit in limited:
                    free[limit] -= 1
        return due[: wanted["limit"]]

    def _pick(self, run: Run, wanted: dict[str, Any]) -> Sequence[Sequence[Any]]:
        return run(self._session.statement("pick", wanted | {"skipped": rows.array(self._skipped)}))

    # ------------------------------------------------------------ when to claim
    def due_in(self, claim_rules: Sequence[ClaimRule], queues: Sequence[str]) -> float | None:
        self._session.check()
        now = self._session.timestamp()
        given = {
            "queues": rows.array(sorted(set(queues))),
            "kinds": rows.kinds(claim_rules),
            "now": now.text,
            "suspects": 1,
            "skipped": rows.array(id for id, until in list(self._skipped.items()) if until > now.at),
        }
        due = when(self._session.read_own("due_in", given)[0][0])
        return None if due is None else max(0.0, (due - now.at).total_seconds())

    def listen(self, wake: Callable[[], None], on_open: Callable[[], None] | None = None) -> Subscription:
        self._session.check()
        return self._listeners.open(
            SqliteListener(self._session.file, self.poll_every, wake, on_open, self._listeners.forget)
        )

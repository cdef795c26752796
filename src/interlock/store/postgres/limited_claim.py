"""The statements of a claim of jobs with limits, on PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from psycopg import Connection

from ...core.limits import Candidate
from ..codec import array, text_array, time_array
from ..enqueue_plan import Rows, Statement
from ..limited_claim import KeyCheck, KeyJob, KeyState, LimitRow
from ..types import ClaimRule, Lease
from .claimed_rows import jobs_without_transition, read_leases
from .commit_single import send
from .connection import is_shared
from .session import PostgresSession


class PostgresLimitedQueries:
    """The statements, on one connection. The first one begins the transaction."""

    def __init__(
        self, session: PostgresSession, conn: Connection[Any], given: Mapping[str, Any], rules: Sequence[ClaimRule]
    ) -> None:
        self._session = session
        self._conn = conn
        self._given = dict(given)
        """The parameters of the claim."""
        self._rules = rules
        self._leased_at: datetime | None = None
        self._last: list[Statement] = []
        """Statements without an answer, which are sent with the next ones."""

    def read_limits(self) -> list[LimitRow]:
        while True:
            self._conn.execute("BEGIN")
            with self._conn.pipeline():
                if is_shared(self._conn):
                    send(self._conn, self._session.statement("fixed_plans", {"local": True}))
                locked = send(self._conn, self._statement("limits.lock"))
                send(self._conn, self._statement("limits.share"))
                read = send(self._conn, self._statement("limits.read"))
            rows = [LimitRow(*row) for row in read.fetchall()]
            if {(row.scope, row.name) for row in rows}.issubset(locked.fetchall()):
                return rows
            # A limit was stored after `limits.lock` began, so this claim does not hold its lock.
            self._conn.execute("ROLLBACK")

    def take_checks(self, pairs: Sequence[tuple[str, str]], most: int) -> list[KeyCheck]:
        given = {
            "check_kind": text_array([kind for kind, _ in pairs]),
            "check_queue": text_array([queue for _, queue in pairs]),
            "most": most,
        }
        return [KeyCheck(*row) for row in self._run(self._session.statement("key_checks.take", given))]

    def find_key_jobs(self, keys: Sequence[KeyState], limit: int, *, fitting: bool) -> list[KeyJob]:
        rates = [key.limit.rate for key in keys]
        given = {
            "key_kind": text_array([key.kind for key in keys]),
            "key": text_array([key.key for key in keys]),
            "key_queue": text_array([key.queue for key in keys]),
            "most_running": array([key.limit.max_running for key in keys]),
            "per_second": array([None if rate is None else rate.count / rate.seconds for rate in rates]),
            "burst": array([key.limit.burst for key in keys]),
            "limit": limit,
            "fitting": fitting,
        }
        return [KeyJob(*row) for row in self._run(self._statement("key_jobs", given))]

    def pick(self, pairs: Mapping[tuple[str, str], int]) -> list[Candidate]:
        if not pairs:
            return []
        given = {
            "pair_queue": text_array([queue for queue, _ in pairs]),
            "pair_kind": text_array([kind for _, kind in pairs]),
            "pair_free": array(pairs.values()),
        }
        return [Candidate(*row) for row in self._run(self._statement("pick", given))]

    def lease(self, chosen: Sequence[Candidate], limited: Collection[str]) -> list[Lease]:
        given = {
            "id": array(each.id for each in chosen),
            "limited": array(True if each.id in limited else None for each in chosen),
        }
        rows = self._run(self._statement("claim.picked", given))
        self._leased_at = rows[0][0] if rows else None
        if unmoved := jobs_without_transition(rows, self._rules):
            # A claim without a transition writes an audit note.
            self._last.append(self._session.statement("claim.note", {"id": array(unmoved)}, answers=False))
        return read_leases(rows, self._rules, self._given["by"])

    def spend(self, limits: Sequence[tuple[LimitRow, int]], keys: Sequence[tuple[KeyState, int]]) -> None:
        if limits:
            given = {
                "scope": text_array([row.scope for row, _ in limits]),
                "name": text_array([row.name for row, _ in limits]),
                "tokens": array([self._left(row, row.tokens or 0.0, row.now, n) for row, n in limits]),
                "at": time_array([self._leased_at or row.now for row, _ in limits]),
            }
            self._last.append(self._session.statement("limits.spend", given, answers=False))
        if keys:
            given = {
                "kind": text_array([key.kind for key, _ in keys]),
                "key": text_array([key.key for key, _ in keys]),
                "tokens": array([self._left(key.limit, key.budget.tokens, key.now, n) for key, n in keys]),
                "at": time_array([self._leased_at or key.now for key, _ in keys]),
            }
            self._last.append(self._session.statement("key_rates.spend", given, answers=False))

    def _left(self, limit: LimitRow, tokens: float, at: datetime, used: int) -> float:
        """Return the tokens that are left when the jobs have been leased, which is later than `at`."""
        if limit.rate is None or limit.burst is None or self._leased_at is None:
            return tokens - used
        return limit.rate.after(tokens, limit.burst, (self._leased_at - at).total_seconds()) - used

    def add_checks(self, checks: Sequence[KeyCheck]) -> None:
        if checks:
            given = {
                "check_at": time_array([check.check_at for check in checks]),
                "wait": array([check.wait for check in checks]),
                "priority": array([check.priority for check in checks]),
                "kind": text_array([check.kind for check in checks]),
                "queue": text_array([check.queue for check in checks]),
                "key": text_array([check.key for check in checks]),
            }
            self._last.append(self._session.statement("key_checks.add", given, answers=False))

    def commit(self) -> None:
        with self._conn.pipeline():
            for statement in self._last:
                send(self._conn, statement)
            self._conn.execute("COMMIT")

    def _statement(self, query: str, given: Mapping[str, Any] | None = None) -> Statement:
        return self._session.statement(query, self._given | dict(given or {}))

    def _run(self, statement: Statement) -> Rows:
        """Run the statement, after those that were left for it."""
        before, self._last = self._last, []
        with self._conn.pipeline():
            for each in before:
                send(self._conn, each)
            cursor = send(self._conn, statement)
        return cursor.fetchall()

"""The statements of a claim of jobs with limits, on SQLite."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from ...core.limits import Candidate, Rate
from ..commit_boundary import Run
from ..limited_claim import KeyCheck, KeyJob, KeyState, LimitRow
from ..types import ClaimRule, Lease
from . import rows
from .session import SqliteSession
from .timestamps import Timestamp, when

LeasePicks = Callable[[Sequence[tuple[Candidate, bool]]], list[Lease]]
"""Leases jobs that were picked, each of which may be plain."""


def read_limits(run: Run, session: SqliteSession, given: Mapping[str, Any], now: Timestamp) -> list[LimitRow]:
    """Read the limits of these queues and kinds."""
    found: list[LimitRow] = []
    for row in run(session.statement("limits.read", dict(given))):
        count, seconds, burst, tokens, at = row[5:]
        ahead = at is not None and at > now.text
        left = None if burst is None else tokens_now(Rate(count, seconds), burst, tokens, at, now.at)
        found.append(
            LimitRow(row[0], row[1], bool(row[2]), row[3], row[4], count, seconds, burst, left, now.text, ahead)
        )
    return found


def tokens_now(rate: Rate, burst: float, tokens: float | None, at: str | None, now: datetime) -> float:
    """Return the tokens of a bucket now. One that was never used is full."""
    since = when(at)
    return burst if tokens is None or since is None else rate.after(tokens, burst, (now - since).total_seconds())


class SqliteLimitedQueries:
    """The statements, in the claim's own transaction."""

    def __init__(  # noqa: PLR0917 - what all statements of one claim share
        self,
        session: SqliteSession,
        run: Run,
        given: Mapping[str, Any],
        claim_rules: Sequence[ClaimRule],
        now: Timestamp,
        lease_picks: LeasePicks,
    ) -> None:
        self._session, self._do = session, run
        self._given = dict(given)
        """The parameters of the claim."""
        self._queues: list[str] = given["served"]
        self._states = rows.states(claim_rules)
        self._now = now
        self._lease_picks = lease_picks
        self._plain: dict[str, bool] = {}

    def read_limits(self) -> list[LimitRow]:
        return read_limits(self._do, self._session, self._given, self._now)

    def take_checks(self, pairs: Sequence[tuple[str, str]], most: int) -> list[KeyCheck]:
        given = {"pairs": rows.array(pairs), "most": most, "now": self._now.text}
        found = [KeyCheck(*row) for row in self._run("key_checks.take", given)]
        return sorted(found, key=lambda check: (-check.priority, check.check_at))

    def find_key_jobs(self, keys: Sequence[KeyState], limit: int, *, fitting: bool) -> list[KeyJob]:
        return [job for n, key in enumerate(keys, start=1) for job in self._jobs_of(n, key, limit, fitting=fitting)]

    def _jobs_of(self, n: int, key: KeyState, limit: int, *, fitting: bool) -> list[KeyJob]:
        names = {"kind": key.kind, "key": key.key}
        running, stored, at = self._run("key_jobs.state", names)[0]
        rate, burst = key.limit.rate, key.limit.burst
        tokens = None if rate is None or burst is None else tokens_now(rate, burst, stored, at, self._now.at)
        ahead = at is not None and at > self._now.text
        state = KeyJob(n, running, tokens, self._now.text, None, "", 0, "", suspect=False, fits=True, ahead=ahead)
        most = key.limit.max_running
        free = int(min(limit, limit if most is None else most - running, limit if tokens is None else tokens))
        if free < 1:
            return [state]
        queues = [key.queue] if key.queue else [row[0] for row in self._run("key_jobs.queues", names)]
        found: list[KeyJob] = []
        for queue in queues:
            given = names | {"queue": queue, "limit": free + 1 if queue in self._queues else 1}
            given |= {"states": self._states.get(key.kind, ""), "fitting": fitting}
            for id, priority, due_at, suspect, fits in self._run("key_jobs", self._given | given):
                found.append(
                    state._replace(
                        id=id, queue=queue, priority=priority, due_at=due_at, suspect=bool(suspect), fits=bool(fits)
                    )
                )
        return found or [state]

    def pick(self, pairs: Mapping[tuple[str, str], int]) -> list[Candidate]:
        known = [(queue, kind, self._states[kind]) for queue, kind in pairs]
        found: list[Candidate] = []
        if known:
            for row in self._run("pick", self._given | {"pairs": rows.array(known), "limited": 1, "most": -1}):
                id, kind, _, queue, suspect, plain, priority, due_at = row
                self._plain[id] = bool(plain)
                found.append(Candidate(id, kind, queue, priority, due_at, bool(suspect)))
        return found

    def lease(self, chosen: Sequence[Candidate], limited: Collection[str]) -> list[Lease]:
        del limited  # a listener sees every change, so the end of a limited job needs no announcement
        return self._lease_picks([(each, self._plain.get(each.id, False)) for each in chosen])

    def spend(self, limits: Sequence[tuple[LimitRow, int]], keys: Sequence[tuple[KeyState, int]]) -> None:
        # The whole claim has one time.
        for row, used in limits:
            given = {"scope": row.scope, "name": row.name, "tokens": (row.tokens or 0) - used, "now": self._now.text}
            self._run("limits.spend", given, answers=False)
        for key, used in keys:
            tokens = key.budget.tokens - used
            given = {"kind": key.kind, "key": key.key, "tokens": tokens, "now": self._now.text}
            self._run("key_rates.spend", given, answers=False)

    def add_checks(self, checks: Sequence[KeyCheck]) -> None:
        for check in checks:
            at = self._now.plus(check.wait) if check.check_at is None else check.check_at
            given = {"check_at": at, "priority": check.priority, "kind": check.kind, "queue": check.queue}
            given |= {"key": check.key}
            self._run("key_checks.add", given, answers=False)

    def _run(self, query: str, given: dict[str, Any], *, answers: bool = True) -> Sequence[Any]:
        return self._do(self._session.statement(query, given, answers=answers))

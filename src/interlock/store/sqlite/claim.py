"""Claims on SQLite.

A claim picks due jobs with one read and writes them in the same transaction, all jobs of one claim rule at once.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ...core.limits import Candidate
from ..bisect import bisect
from ..codec import lease
from ..commit_boundary import Run
from ..limited_claim import LimitedClaim
from ..plain_path import Fallbacks, plain_claim
from ..types import ClaimRule, Lease
from . import rows
from .control import SqliteControl
from .file import runner
from .flow import SqliteFlow
from .limited_claim import SqliteLimitedQueries, read_limits
from .session import SqliteSession
from .timestamps import Timestamp, when

SKIP_FOR = timedelta(seconds=60)
"""How long a claim skips a job that cannot be claimed."""
_log = logging.getLogger("interlock")


class _RolledBack(Exception):
    """Ends a transaction that must change nothing."""


class Pick(NamedTuple):
    """A job to claim, and whether the plain statement may claim it."""

    id: str
    kind: str
    state: str
    plain: bool


class SqliteClaims:
    """The claims of one store."""

    def __init__(self, session: SqliteSession, control: SqliteControl, flow: SqliteFlow) -> None:
        self._session = session
        self._control = control
        self._flow = flow
        self._skipped: dict[str, datetime] = {}
        self._full = False
        """Whether the last claim was full, so that more jobs are probably due."""
        self.plain = True
        """Whether jobs of the plain case take the statement `claim.plain`. It changes no result."""
        self.fallbacks = Fallbacks("claim")

    def claim(self, by: str, claim: LimitedClaim, *, alone: bool) -> list[Lease]:
        given = self._given(claim.claim_rules, claim.queues) | {
            "limit": claim.limit,
            "most": claim.limit,
            "suspects": claim.suspects,
            "most_suspects": claim.suspects,
            "alone": alone,
        }
        # An idle worker only reads, so that it does not take the lock that writers wait for.
        if not self._full and not self._is_due(given, claim.claim_rules):
            return []
        self._full = False
        try:
            claimed = self._claim(given, claim, by)
        except Exception as error:
            if self._session.file.library.is_database_error(error):
                raise
            return self._claim_around(given, claim, by)
        self._full = len(claimed) == claim.limit
        return claimed

    def _given(self, claim_rules: Sequence[ClaimRule], queues: Sequence[str]) -> dict[str, Any]:
        """The parameters that the statements of a claim share."""
        now = self._session.timestamp()
        self._skipped = {id: until for id, until in list(self._skipped.items()) if until > now.at}
        served = sorted(set(queues))
        return {
            "served": served,
            "queues": rows.array(served),
            "kinds": rows.array(sorted({rule.kind for rule in claim_rules})),
            "pairs": rows.pairs(claim_rules, queues),
            "limited": 0,
            "now": now.text,
            "skipped": rows.array(self._skipped),
        }

    def _is_due(self, given: dict[str, Any], claim_rules: Sequence[ClaimRule]) -> bool:
        """Whether there is something to claim, or dependencies to resolve."""
        suspects = min(given["suspects"], 1)
        one = given | {"limit": 1, "most": 1, "suspects": suspects, "most_suspects": suspects}

        def look(run: Run) -> tuple[bool, bool]:
            flow, limits = self._special(run, given)
            return flow or bool(run(self._session.statement("pick", one))), limits

        due, limits = self._session.file.read(look)
        return due or (limits and self._limited_due_in(given, claim_rules) == 0.0)

    def _special(self, run: Run, given: dict[str, Any]) -> tuple[bool, bool]:
        """Whether dependencies must be resolved, and whether there are limits."""
        flow, limits = run(self._session.statement("claim.special", given))[0]
        return bool(flow), bool(limits)

    # ------------------------------------------------------------ writing
    def _claim(self, given: dict[str, Any], claim: LimitedClaim, by: str) -> list[Lease]:
        with self._session.file.write() as conn:
            run = runner(conn)
            # The clock is read after the wait for the write lock, so that the wait does not shorten the lease.
            now = self._session.timestamp()
            flow, limits = self._special(run, given | {"now": now.text})
            if flow:
                self._flow.resolve_in(run, now)
            found = () if limits else run(self._session.statement("pick", given | {"now": now.text}))
            picks = [Pick(row[0], row[1], row[2], bool(row[5])) for row in found]
            leases = self._claim_picks(run, claim.claim_rules, picks, by, now) if picks else []
        return self._claim_limited(given, claim, by) if limits else leases

    def _claim_limited(self, given: dict[str, Any], claim: LimitedClaim, by: str) -> list[Lease]:
        def run_one(rest: LimitedClaim) -> tuple[list[Lease], bool]:
            with self._session.file.write() as conn:
                return rest.run(self._queries(runner(conn), given, rest, by))

        return claim.run_rounds(run_one)

    def _queries(self, run: Run, given: dict[str, Any], claim: LimitedClaim, by: str) -> SqliteLimitedQueries:
        now, rules = self._session.timestamp(), claim.claim_rules
        sized = given | {"now": now.text, "limit": claim.limit, "suspects": claim.suspects}

        def lease_picks(chosen: Sequence[tuple[Candidate, bool]]) -> list[Lease]:
            ids = rows.array([each.id for each, _ in chosen])
            states = dict(run(self._session.statement("claim.states", {"ids": ids})))
            picks = [Pick(each.id, each.kind, states[each.id], plain) for each, plain in chosen]
            return self._claim_picks(run, rules, picks, by, now)

        return SqliteLimitedQueries(self._session, run, sized, rules, now, lease_picks)

    def _claim_picks(
        self, run: Run, claim_rules: Sequence[ClaimRule], picks: Sequence[Pick], by: str, now: Timestamp
    ) -> list[Lease]:
        places = {pick.id: place for place, pick in enumerate(picks)}
        plain = self.plain and plain_claim(claim_rules)
        waiting: dict[tuple[str, str, bool], list[str]] = {}
        for pick in picks:
            waiting.setdefault((pick.kind, pick.state, plain and pick.plain), []).append(pick.id)
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

    # ------------------------------------------------------------ jobs that cannot be claimed
    def _claim_around(self, given: dict[str, Any], claim: LimitedClaim, by: str) -> list[Lease]:
        """Claim the other jobs of a batch in which some rows cannot be claimed, and skip those rows for a while."""
        library = self._session.file.library
        leases: list[Lease] = []
        culprits = bisect(
            self._candidates(given, claim, by),
            lambda ids: leases.extend(self._claim_limited(given, claim.limited_to(ids), by)),
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

    def _candidates(self, given: dict[str, Any], claim: LimitedClaim, by: str) -> list[str]:
        found: list[str] = []
        with suppress(_RolledBack), self._session.file.write() as conn:
            found = claim.candidates(self._queries(runner(conn), given, claim, by))
            raise _RolledBack
        return found

    # ------------------------------------------------------------ when to claim
    def due_in(self, claim_rules: Sequence[ClaimRule], queues: Sequence[str]) -> float | None:
        given = self._given(claim_rules, queues) | {"suspects": 1, "alone": True}
        flow, limits = self._session.file.read(lambda run: self._special(run, given))
        due = 0.0 if flow else self._seconds_until(self._session.read_own("due_in", given)[0][0], given)
        if not limits or due == 0.0:
            return due
        limited = self._limited_due_in(given, claim_rules)
        return limited if due is None else due if limited is None else min(due, limited)

    def _limited_due_in(self, given: dict[str, Any], claim_rules: Sequence[ClaimRule]) -> float | None:
        """Return the seconds until a job with limits could start; None if none waits."""
        now = self._session.timestamp()
        found = self._session.file.read(lambda run: read_limits(run, self._session, given, now))
        limits = {(row.scope, row.name): row for row in found}
        starts: list[float] = []
        for kind, states in rows.states(claim_rules).items():
            for queue in given["served"]:
                own = [row for name in (("queue", queue), ("kind", kind)) if (row := limits.get(name)) is not None]
                if any(row.paused or row.budget.running < 1 for row in own):
                    continue
                wait = max(
                    (row.rate.wait(row.tokens) for row in own if row.rate and row.tokens is not None and not row.ahead),
                    default=0,
                )
                dues: list[str | None] = []
                if own:
                    pair = given | {"pairs": rows.array([(queue, kind, states)]), "limited": 1}
                    dues.append(self._session.read_own("due_in", pair)[0][0])
                if ("key", kind) in limits:
                    pairs = rows.array([(kind, queue), (kind, "")])
                    dues.append(self._session.read_own("key_checks.next", {"pairs": pairs})[0][0])
                starts += [max(due, wait) for text in dues if (due := self._seconds_until(text, given)) is not None]
        return min(starts, default=None)

    @staticmethod
    def _seconds_until(text: str | None, given: dict[str, Any]) -> float | None:
        due, now = when(text), datetime.fromisoformat(given["now"])
        return None if due is None else max(0.0, (due - now).total_seconds())

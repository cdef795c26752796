"""Claims on PostgreSQL: the plain one, the general one, and the one for jobs with limits."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import psycopg

from ...errors import Unavailable
from ..bisect import bisect
from ..codec import array, text_array
from ..enqueue_plan import Rows, Statement
from ..limited_claim import LimitedClaim
from ..plain_path import Fallbacks, plain_claim
from ..types import ClaimRule, Lease
from . import columns
from .claim_bounds import ClaimBounds
from .claimed_rows import jobs_without_transition, read_leases
from .connection import Run, runner
from .control import PostgresControl
from .flow import PostgresFlow
from .limited_claim import PostgresLimitedQueries
from .pool import is_database_error
from .session import PostgresSession

SPECIAL_FOR = 1.0
"""Seconds for which claims of these kinds and queues do not try the plain statement, after it found special jobs."""
SKIP_FOR = 60.0
"""Seconds for which a claim skips a job that cannot be claimed."""
ROUNDS = 5
"""How often one claim looks again, because something has changed meanwhile."""
OVERTAKEN = "IL002"
"""The SQLSTATE of a claim of a queue or kind that was paused or limited while it ran."""
Special = Literal["flow", "limit", "other"]
"""Why the plain statement does not fit: dependencies must be resolved; a limit; a job with a TTL or a suspect."""
_log = logging.getLogger("interlock")


class PostgresClaims:
    """The claims of one store."""

    def __init__(self, session: PostgresSession, control: PostgresControl, flow: PostgresFlow) -> None:
        self._session = session
        self._control = control
        self._flow = flow
        self._skipped: dict[str, float] = {}
        self._bounds = ClaimBounds()
        self._specials: dict[tuple[str, str], tuple[Special, float]] = {}
        self.plain = True
        self.fallbacks = Fallbacks("claim")
        self.special_for = SPECIAL_FOR

    def claim(self, by: str, claim: LimitedClaim, *, alone: bool) -> list[Lease]:
        """Claim jobs. A claim that a pause or a new limit overtook sees it when it is repeated."""
        for _ in range(ROUNDS):
            try:
                return self._claim(self._given(by, claim, alone=alone), claim)
            except psycopg.Error as error:
                if error.sqlstate == OVERTAKEN:
                    continue
                if is_database_error(error):
                    raise
                return self._claim_around(self._given(by, claim, alone=alone), claim)
        return []

    def _given(self, by: str, claim: LimitedClaim, *, alone: bool) -> dict[str, Any]:
        return columns.claim_rules(claim.claim_rules) | {
            "queues": text_array(sorted(set(claim.queues))),
            "limit": claim.limit,
            "suspects": claim.suspects,
            "alone": alone,
            "by": by,
            "skipped": self.skipping(),
            "past_limits": False,
        }

    def _claim(self, given: dict[str, Any], claim: LimitedClaim) -> list[Lease]:
        asked = (given["kinds"], given["queues"])
        known, until = self._specials.get(asked, (None, 0.0))
        special: Special | None = known if until > time.monotonic() else None
        leases: list[Lease] = []
        if special is None:
            special, leases = self._claim_unlimited(given, claim)
            if special in ("limit", "other"):
                self._specials[asked] = special, time.monotonic() + self.special_for
        for _ in range(ROUNDS):
            if special is None or leases:
                break
            if special == "flow":
                self._flow.resolve()
            elif special == "limit" and self.limited_due_in(given) == 0.0:
                return self._claim_limited(given, claim)
            elif special == "limit":
                given["past_limits"] = True
            if special == "other":
                special, leases = self._claim_generally(given, claim)
            else:
                special, leases = self._claim_unlimited(given, claim)
        return leases

    # ------------------------------------------------------------ jobs without limits
    def _claim_unlimited(self, given: dict[str, Any], claim: LimitedClaim) -> tuple[Special | None, list[Lease]]:
        """Claim by the plain statement, or by the general one if that does not fit the kinds.

        If the first value is not None, it claimed nothing, and says what else may be due.
        """
        if self.plain and not self._skipped and plain_claim(claim.claim_rules):
            return self._claim_plainly(given, claim)
        return self._claim_generally(given, claim)

    def _claim_plainly(self, given: dict[str, Any], claim: LimitedClaim) -> tuple[Special | None, list[Lease]]:
        rules = claim.claim_rules
        bounds = self._bounds.parameters({rule.kind for rule in rules}, set(claim.queues))
        try:
            rows = self._session.run_with_fixed_plan("claim.plain", given | bounds)
        except psycopg.Error as error:
            if is_database_error(error):
                raise
            self.fallbacks.add(str(error))
            return "other", []
        if rows[0][0]:
            self.fallbacks.add("dependencies, a limit, a pause, a job with a TTL or a suspect")
            return rows[0][0], []
        self._bounds.learn([row for row in rows if row[1] is not None], rules, claim.limit)
        return None, read_leases(rows, rules, given["by"])

    def _claim_generally(self, given: dict[str, Any], claim: LimitedClaim) -> tuple[Special | None, list[Lease]]:
        session, rules, statement = self._session, claim.claim_rules, self._session.statement("claim", given)
        if all(rule.path for rule in rules):
            rows = session.fixed.with_fixed_plans(session.fixed_plans, statement)[0]
        else:
            rows = session.pool.transact(lambda conn: self._claim_with_notes(runner(conn), statement, rules))
        return rows[0][0], read_leases(rows, rules, given["by"])

    def _claim_with_notes(self, run: Run, statement: Statement, rules: Sequence[ClaimRule]) -> Rows:
        """A claim in which some jobs make no transition; an audit note records it."""
        run(self._session.statement("fixed_plans", {"local": True}))
        rows = run(statement)
        if unmoved := jobs_without_transition(rows, rules):
            run(self._session.statement("claim.note", {"id": array(unmoved)}, answers=False))
        return rows

    # ------------------------------------------------------------ jobs with limits
    def _claim_limited(self, given: dict[str, Any], claim: LimitedClaim) -> list[Lease]:
        """Claim jobs with and without limits."""
        return claim.run_rounds(lambda rest: self._session.fixed.carry_out(partial(self._limited_once, given, rest)))

    def _limited_once(
        self, given: dict[str, Any], claim: LimitedClaim, conn: psycopg.Connection[Any]
    ) -> tuple[list[Lease], bool]:
        sized = given | {"limit": claim.limit, "suspects": claim.suspects}
        queries = PostgresLimitedQueries(self._session, conn, sized, claim.claim_rules)
        found = claim.run(queries)
        queries.commit()
        return found

    def limited_due_in(self, given: dict[str, Any]) -> float | None:
        """Return the seconds until a job with limits could start; None if none waits."""
        seconds: float | None = self._session.run_with_fixed_plan("due_in.limited", given)[0][0]
        return seconds

    # ------------------------------------------------------------ jobs that cannot be claimed
    def _claim_around(self, given: dict[str, Any], claim: LimitedClaim) -> list[Lease]:
        """Claim the other jobs of a batch in which some rows cannot be claimed, and skip those rows for a while."""
        leases: list[Lease] = []
        picked = self._session.fixed.carry_out(lambda conn: self._find_candidates(conn, given, claim))
        for id, culprit in bisect(
            picked,
            lambda ids: leases.extend(self._claim_limited(given, claim.limited_to(ids))),
            is_database_error,
        ):
            self._skip(id, culprit)
        return leases

    def _find_candidates(self, conn: psycopg.Connection[Any], given: dict[str, Any], claim: LimitedClaim) -> list[str]:
        found = claim.candidates(PostgresLimitedQueries(self._session, conn, given, claim.claim_rules))
        conn.execute("ROLLBACK")
        return found

    def skipping(self) -> str:
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
        given = columns.claim_rules(claim_rules) | {
            "queues": text_array(sorted(set(queues))),
            "suspects": 1,
            "alone": True,
            "skipped": self.skipping(),
        }
        seconds: float | None
        ((seconds, has_limits),) = self._session.run_with_fixed_plan("due_in", given)
        if not has_limits or seconds == 0.0:
            return seconds
        limited = self.limited_due_in(given)
        return limited if seconds is None else seconds if limited is None else min(seconds, limited)

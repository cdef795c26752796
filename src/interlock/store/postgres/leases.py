"""Leases on PostgreSQL: renewal, and takeover of executions whose lease has ended."""

from collections.abc import Sequence
from typing import Any

from ..codec import JOB_WIDTH, adopted, array
from ..enqueue_plan import Rows
from ..types import Fence, Heartbeat, Lease, Renewal
from . import columns
from .session import PostgresSession, as_is


class PostgresLeases:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def renew(self, heartbeats: Sequence[Heartbeat]) -> Renewal:
        self._session.check()
        renewal = Renewal()
        ordered = sorted(heartbeats, key=lambda b: (b.fence.job_id, b.fence.attempt))
        rows = self._run("renew", columns.heartbeats(ordered)) if ordered else ()
        kept = {int(row[0]) - 1: bool(row[2]) for row in rows}
        renewal.renewed = [ordered[n].fence for n in sorted(kept)]
        renewal.cancels = [ordered[n].fence for n in sorted(kept) if kept[n]]
        skipped = [n for n in range(len(ordered)) if n not in kept]
        if skipped:
            listed = columns.fences([ordered[n].fence for n in skipped]) | {"ord": array(skipped)}
            for n, ours in self._run("unrenewed", listed):
                (renewal.busy if ours else renewal.lost).append(ordered[int(n)].fence)
        return renewal

    def _run(self, query: str, params: dict[str, Any]) -> Rows:
        """Run a statement on the connection that is reserved for renewals."""
        session = self._session
        return session.renewing.with_fixed_plans(session.fixed_plans, session.statement(query, params))[0]

    def lost_claims(self, by: str, known: Sequence[Fence]) -> list[Fence]:
        given = {"by": by, "job_id": array(fence.job_id for fence in known)}
        return [Fence(*row) for row in self._session.run_with_fixed_plan("lost_claims", given)]

    def adopt(
        self,
        by: str,
        kinds: Sequence[str],
        lease: float,
        limit: int,
        *,
        external: bool = False,
        committed: Sequence[str] | None = None,
    ) -> list[Lease]:
        if external:
            return self._take_over("adopt_external", by, kinds, lease, limit)
        past = columns.names(kinds if committed is None else committed)
        return self._take_over("adopt", by, kinds, lease, limit, committed=past)

    def recall(
        self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external_id: str | None = None
    ) -> list[Lease]:
        if external_id is None:
            return self._take_over("recall", by, kinds, lease, limit)
        return self._take_over("recall_named", by, kinds, lease, limit, external_id=external_id)

    def _take_over(
        self, query: str, by: str, kinds: Sequence[str], seconds: float, limit: int, **more: str
    ) -> list[Lease]:
        self._session.check()
        if not kinds or limit < 1:
            return []
        given = {"by": by, "kinds": columns.names(kinds), "lease": seconds, "limit": limit} | more
        return [
            adopted(row, as_is, owner=by, seconds=seconds, missing_for=row[JOB_WIDTH + 5])
            for row in self._session.run_with_fixed_plan(query, given)
        ]

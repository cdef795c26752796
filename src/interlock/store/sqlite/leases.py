"""Leases on SQLite: renewal, and takeover of executions whose lease has ended."""

from collections.abc import Sequence

from ..codec import JOB_WIDTH, adopted
from ..types import Fence, Heartbeat, Lease, Renewal
from . import rows
from .file import runner
from .session import SqliteSession
from .timestamps import Timestamp, when


class SqliteLeases:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def renew(self, heartbeats: Sequence[Heartbeat]) -> Renewal:
        session = self._session
        session.check()
        renewal = Renewal()
        if not heartbeats:
            return renewal
        fences = [heartbeat.fence for heartbeat in heartbeats]
        lost: set[int] = set()
        handed_over: set[int] = set()
        with session.file.write(first=True) as conn:
            now = session.timestamp()
            batch = [rows.heartbeat(heartbeat, now) for heartbeat in heartbeats]
            renewed = conn.executemany(session.queries["renew"], batch).rowcount
            run = runner(conn)
            if renewed < len(fences):
                listed = rows.array((fence.job_id, fence.attempt, fence.holder) for fence in fences)
                found = run(session.statement("unrenewed", {"fences": listed}))
                lost = {n for n, ours, _ in found if not ours}
                handed_over = {n for n, ours, unowned in found if ours and unowned}
            ids = {"ids": rows.array(fence.job_id for fence in fences)}
            cancelled = {row[0] for row in run(session.statement("renew.cancels", ids))}
        renewal.renewed = [fence for n, fence in enumerate(fences) if n not in lost | handed_over]
        renewal.lost, renewal.busy = [fences[n] for n in sorted(lost)], [fences[n] for n in sorted(handed_over)]
        renewal.cancels = [fence for fence in renewal.renewed if fence.job_id in cancelled]
        return renewal

    def lost_claims(self, by: str, known: Sequence[Fence]) -> list[Fence]:
        self._session.check()
        given = {"ids": rows.array(fence.job_id for fence in known), "by": by}
        return [Fence(*row) for row in self._session.read_own("lost_claims", given)]

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
        query, past = "adopt_external" if external else "adopt", kinds if committed is None else committed
        return self._take_over(query, by, kinds, lease, limit, committed=past)

    def recall(
        self, by: str, kinds: Sequence[str], lease: float, limit: int, *, external_id: str | None = None
    ) -> list[Lease]:
        query = "recall" if external_id is None else "recall_named"
        return self._take_over(query, by, kinds, lease, limit, external_id=external_id)

    def _take_over(
        self,
        query: str,
        by: str,
        kinds: Sequence[str],
        seconds: float,
        limit: int,
        *,
        external_id: str | None = None,
        committed: Sequence[str] = (),
    ) -> list[Lease]:
        session = self._session
        session.check()
        if not kinds or limit < 1:
            return []
        # The clock is read before the wait for the write lock, so that no lease ends because of the wait.
        given = {
            "kinds": rows.array(sorted(set(kinds))),
            "now": session.timestamp().text,
            "limit": limit,
            "external_id": external_id,
            "committed": rows.array(committed),
        }
        if not session.read_own(query, given | {"limit": 1}):
            return []
        with session.file.write() as conn:
            run = runner(conn)
            ended = run(session.statement(query, given))
            taken = session.timestamp()
            owner = {
                "by": by,
                "now": taken.text,
                "until": taken.plus(seconds),
                "ended": rows.array((id, attempt) for id, attempt in ended),
            }
            run(session.statement("adopt.execution", owner, answers=False))
            found = run(session.statement("adopt.adopted", {"ids": rows.array(row[0] for row in ended)}))
        return [
            adopted(row, when, owner=by, seconds=seconds, missing_for=_ago(row[JOB_WIDTH + 5], taken)) for row in found
        ]


def _ago(text: str | None, now: Timestamp) -> float | None:
    since = when(text)
    return None if since is None else (now.at - since).total_seconds()

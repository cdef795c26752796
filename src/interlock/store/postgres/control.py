"""Cancel requests, holds and audit notes on PostgreSQL."""

from collections.abc import Sequence

from ..codec import array, is_id
from ..types import Decision
from .session import PostgresSession


class PostgresControl:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def request_cancel(self, id: str, *, by: str, reason: str | None) -> bool:
        return id in self.request_cancels([id], by=by, reason=reason)

    def request_cancels(self, ids: Sequence[str], *, by: str, reason: str | None) -> dict[str, bool]:
        self._session.check()
        asked = [id for id in ids if is_id(id)]
        given = {"ids": array(asked), "by": by, "reason": reason}
        return dict(self._session.run_locked("lock_live", asked, "request_cancel", given)) if asked else {}

    def add_note(self, job_id: str, *, attempt: int | None, event: str, actor: str, reason: str | None) -> None:
        self._session.check()
        if is_id(job_id):
            given = {"id": job_id, "attempt": attempt, "event": event, "actor": actor, "reason": reason}
            self._session.run_locked("lock_jobs", [job_id], "add_note", given, answers=False)

    def release(self, id: str, *, by: str, reason: str, decision: Decision | None = None) -> bool:
        self._session.check()
        given = {
            "id": id,
            "by": by,
            "reason": reason,
            "happened": decision and decision.happened,
            "value": decision and decision.value,
        }
        return is_id(id) and bool(self._session.run_locked("lock_jobs", [id], "release", given)[0][0])

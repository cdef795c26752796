"""Cancel requests, holds and audit notes on SQLite."""

import json
from collections.abc import Sequence

from ..enqueue_plan import Statement
from ..types import Decision
from . import rows
from .file import runner
from .session import SqliteSession


class SqliteControl:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def request_cancel(self, id: str, *, by: str, reason: str | None) -> bool:
        return id in self.request_cancels([id], by=by, reason=reason)

    def request_cancels(self, ids: Sequence[str], *, by: str, reason: str | None) -> dict[str, bool]:
        session = self._session
        session.check()
        given = {"ids": rows.array(ids), "by": by, "reason": reason, "now": session.timestamp().text}
        with session.file.write() as conn:
            run = runner(conn)
            found = {id: bool(fresh) for id, fresh in run(session.statement("request_cancel", given))}
            if any(found.values()):
                given["ids"] = rows.array(id for id, fresh in found.items() if fresh)
                run(session.statement("request_cancel.job", given, answers=False))
                run(session.statement("request_cancel.audit", given, answers=False))
        return found

    def add_note(self, job_id: str, *, attempt: int | None, event: str, actor: str, reason: str | None) -> None:
        session = self._session
        session.check()
        given = {
            "ids": rows.array([job_id]),
            "attempt": attempt,
            "event": event,
            "actor": actor,
            "reason": reason,
            "now": session.timestamp().text,
        }
        with session.file.write() as conn:
            conn.execute(session.queries["add_note"], given)

    def release(self, id: str, *, by: str, reason: str, decision: Decision | None = None) -> bool:
        session = self._session
        session.check()
        with session.file.write() as conn:
            run = runner(conn)
            given = {
                "id": id,
                "by": by,
                "reason": reason,
                "now": session.timestamp().text,
                "value": decision and decision.value,
                "detail": None,
            }
            if not run(session.statement("release", given)):
                return False
            if decision is not None:
                query = "release.happened" if decision.happened else "release.did_not"
                names = sorted(row[0] for row in run(Statement(session.queries[query], given)))
                given["detail"] = json.dumps({"happened": decision.happened, "effects": names}, ensure_ascii=False)
            run(session.statement("release.audit", given, answers=False))
            return True

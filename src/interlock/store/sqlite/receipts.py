"""Receipts on SQLite: what is remembered of steps and outside calls, and the release of a job that was held over a doubt."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ...records import Decision, Fence, Receipt
from ..enqueue import Rows, Statement
from .file import File, runner
from .moment import Moment, when


class Receipts:
    """The part of the store that remembers. It needs `queries`, `file`, `check` and `moment`."""

    queries: dict[str, str]
    file: File
    _ask: Callable[[str, dict[str, Any]], Rows]

    def check(self) -> None:
        raise NotImplementedError

    def moment(self) -> Moment:
        raise NotImplementedError

    def receipts(self, job_id: str) -> list[Receipt]:
        rows = self._ask("receipts", {"job_id": job_id})
        now = self.moment().at
        return [Receipt(*_fields(row, now)) for row in rows]

    def remember(self, fence: Fence, name: str, args_hash: str, value: str) -> bool:
        return self._written("remember", fence, name=name, args_hash=args_hash, value=value)

    def ask(self, fence: Fence, name: str, args_hash: str) -> bool:
        return self._written("ask", fence, name=name, args_hash=args_hash)

    def apply(self, fence: Fence, name: str, value: str | None, *, decided_by: str) -> bool:
        return self._written("apply", fence, name=name, value=value, decided_by=decided_by)

    def unask(self, fence: Fence, name: str) -> bool:
        return self._written("unask", fence, name=name)

    def release(self, id: str, *, by: str, reason: str, decision: Decision | None = None) -> bool:
        self.check()
        with self.file.write() as conn:
            run = runner(conn)
            given = {"id": id, "by": by, "reason": reason, "now": self.moment().text, "value": decision and decision.value, "detail": None}
            if not run(Statement(self.queries["release"], given)):
                return False
            if decision is not None:
                names = run(Statement(self.queries["release.happened" if decision.happened else "release.did_not"], given))
                given["detail"] = json.dumps({"happened": decision.happened, "effects": sorted(row[0] for row in names)}, ensure_ascii=False)
            run(Statement(self.queries["release.audit"], given, answers=False))
            return True

    def _written(self, query: str, fence: Fence, **given: str | None) -> bool:
        self.check()
        asked = given | {"job_id": fence.job_id, "attempt": fence.attempt, "holder": fence.holder}
        with self.file.write() as conn:
            return bool(runner(conn)(Statement(self.queries[query], asked | {"now": self.moment().text})))


def _fields(row: Any, now: datetime) -> list[Any]:
    written = when(row[7]) or now
    return [*row[:6], bool(row[6]), (now - written).total_seconds(), row[8]]

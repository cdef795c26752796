"""Receipts on PostgreSQL: what is remembered of steps and outside calls, and the release of a job that was held over a doubt."""

from collections.abc import Callable
from typing import Any

from ...records import Decision, Fence, Receipt
from .. import codec
from ..enqueue import Rows, Statement
from .pool import Pool


class Receipts:
    """The part of the store that remembers. It needs `queries`, `pool` and `check`."""

    queries: dict[str, str]
    pool: Pool
    _ask_steadily: Callable[[str, dict[str, Any]], Rows]

    def check(self) -> None:
        raise NotImplementedError

    def receipts(self, job_id: str) -> list[Receipt]:
        rows = self._ask_steadily("receipts", {"job_id": job_id}) if codec.is_id(job_id) else ()
        return [Receipt(*row) for row in rows]

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
        if not codec.is_id(id):
            return False
        given = {"id": id, "by": by, "reason": reason, "happened": decision and decision.happened, "value": decision and decision.value}
        locked = Statement(self.queries["lock_jobs"], {"id": codec.array([id])})
        _, rows = self.pool.steadily(self.queries["steady"], locked, Statement(self.queries["release"], given))
        return bool(rows[0][0])

    def _written(self, query: str, fence: Fence, **given: str | None) -> bool:
        self.check()
        if not codec.is_id(fence.job_id):
            return False
        asked = given | {"job_id": fence.job_id, "attempt": fence.attempt, "holder": fence.holder}
        return bool(self.pool.steadily(self.queries["steady"], Statement(self.queries[query], asked))[0])

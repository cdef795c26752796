"""Receipts on PostgreSQL: saved results of steps and effects."""

from .. import codec
from ..types import Fence, Receipt
from .session import PostgresSession


class PostgresReceipts:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def for_job(self, job_id: str) -> list[Receipt]:
        known = codec.is_id(job_id)
        rows = self._session.read_with_fixed_plan("receipts", {"job_id": job_id}) if known else ()
        return [Receipt(*row) for row in rows]

    def record_step(self, fence: Fence, name: str, args_hash: str, value: str) -> bool:
        return self._write("record_step", fence, name=name, args_hash=args_hash, value=value)

    def begin_effect(self, fence: Fence, name: str, args_hash: str) -> bool:
        return self._write("begin_effect", fence, name=name, args_hash=args_hash)

    def record_effect(self, fence: Fence, name: str, value: str | None, *, decided_by: str) -> bool:
        return self._write("record_effect", fence, name=name, value=value, decided_by=decided_by)

    def discard_effect(self, fence: Fence, name: str) -> bool:
        return self._write("discard_effect", fence, name=name)

    def _write(self, query: str, fence: Fence, **columns: str | None) -> bool:
        self._session.check()
        if not codec.is_id(fence.job_id):
            return False
        given = columns | {"job_id": fence.job_id, "attempt": fence.attempt, "holder": fence.holder}
        return bool(self._session.run_with_fixed_plan(query, given))

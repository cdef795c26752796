"""Receipts on SQLite: saved results of steps and effects."""

from datetime import datetime
from typing import Any

from ..types import Fence, Receipt
from .file import runner
from .session import SqliteSession
from .timestamps import when


class SqliteReceipts:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def for_job(self, job_id: str) -> list[Receipt]:
        rows = self._session.read("receipts", {"job_id": job_id})
        now = self._session.timestamp().at
        return [Receipt(*_fields(row, now)) for row in rows]

    def record_step(self, fence: Fence, name: str, args_hash: str, value: str) -> bool:
        return self._write("record_step", fence, name=name, args_hash=args_hash, value=value)

    def begin_effect(self, fence: Fence, name: str, args_hash: str) -> bool:
        return self._write("begin_effect", fence, name=name, args_hash=args_hash)

    def record_effect(self, fence: Fence, name: str, value: str | None, *, decided_by: str) -> bool:
        return self._write("record_effect", fence, name=name, value=value, decided_by=decided_by)

    def discard_effect(self, fence: Fence, name: str) -> bool:
        return self._write("discard_effect", fence, name=name)

    def _write(self, query: str, fence: Fence, **columns: str | None) -> bool:
        session = self._session
        session.check()
        given = columns | {"job_id": fence.job_id, "attempt": fence.attempt, "holder": fence.holder}
        with session.file.write() as conn:
            return bool(runner(conn)(session.statement(query, given | {"now": session.timestamp().text})))


def _fields(row: Any, now: datetime) -> list[Any]:
    written = when(row[7]) or now
    return [*row[:6], bool(row[6]), (now - written).total_seconds(), row[8]]

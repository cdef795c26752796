"""Deletion of old jobs and their audit on PostgreSQL."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ...core.job import AuditEntry, Phase
from ..archive import digest_of
from ..codec import array, text_array
from ..open_transactions import inside
from ..tx import PlainTx
from .connection import execute, runner
from .inspect import read_histories
from .session import PostgresSession


class PostgresRetention:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def prune(self, *, phase: Phase, age: float, limit: int, kinds: Sequence[str] | None = None) -> int:
        given = {"phase": phase, "age": age, "limit": limit, "kinds": None if kinds is None else text_array(kinds)}
        return self._session.count_changed("prune", given)

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        session = self._session
        session.check()

        def work(conn: psycopg.Connection[Any]) -> int:
            run = runner(conn)
            run(session.statement("lock_archive", {}, answers=False))
            ids = [str(row[0]) for row in run(session.statement("archivable", {"age": age, "limit": limit}))]
            if not ids:
                return 0
            histories = read_histories(run, session.queries["history"], ids)
            with inside(session, PlainTx(conn)):
                write([entry for history in histories.values() for entry in history])
            given = {
                "job_id": array(ids),
                "entries": array(len(h) for h in histories.values()),
                "digest": text_array(digest_of(h) for h in histories.values()),
            }
            run(session.statement("archive", given))
            return execute(conn, session.queries["delete_audit"], {"job_id": array(ids)}).rowcount and len(ids)

        return session.pool.transact(work)

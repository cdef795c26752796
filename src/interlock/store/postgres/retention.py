"""Deletion of old jobs and their audit on PostgreSQL."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ...core.job import AuditEntry, Phase
from ..archive import digest_of
from ..codec import array, text_array
from ..enqueue_plan import Rows
from ..open_transactions import inside
from ..tx import PlainTx
from .connection import runner
from .inspect import read_histories
from .session import PostgresSession

FIRST = "00000000-0000-0000-0000-000000000000"


class PostgresRetention:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._after = FIRST
        """Where the next batch begins, so that it does not pass the archived jobs again."""

    def prune(self, *, phase: Phase, age: float, limit: int, kinds: Sequence[str] | None = None) -> int:
        given = {"phase": phase, "age": age, "limit": limit, "kinds": None if kinds is None else text_array(kinds)}
        return self._session.count_changed("prune", given)

    def forget_windows(self, limit: int) -> int:
        return self._session.count_changed("unique_windows.forget", {"limit": limit})

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        session = self._session
        session.check()

        def work(conn: psycopg.Connection[Any]) -> list[str]:
            run = runner(conn)
            run(session.statement("lock_archive", {}, answers=False))
            asked = {"age": age, "limit": limit, "after": self._after}
            ids = [str(row[0]) for row in run(session.statement("archivable", asked))]
            if not ids:
                return ids
            histories = read_histories(run, session.queries["history"], ids)
            with inside(session, PlainTx(conn)):
                write([entry for history in histories.values() for entry in history])
            given = {
                "job_id": array(ids),
                "entries": array(len(h) for h in histories.values()),
                "digest": text_array(digest_of(h) for h in histories.values()),
            }
            run(session.statement("archive", given))
            run(session.statement("delete_audit", {"job_id": array(ids)}, answers=False))
            return ids

        ids = session.pool.transact(work)
        self._after = FIRST if len(ids) < limit else ids[-1]
        return len(ids)

    def remove_archived(self, *, age: float, limit: int) -> bool:
        dropped, errors = 0, list[psycopg.Error]()
        for (name,) in self._run("droppable", age=age):
            try:
                dropped += self._run("read_committed", "drop_partition", name=name)[0][0]
            except psycopg.Error as error:
                # A view or foreign key of the user may refer to one month. The other months must still be dropped.
                errors.append(error)
        if dropped or self._session.count_changed("delete_archived", {"age": age, "limit": limit}):
            return True
        if errors:
            raise errors[0]
        return False

    def partition_audit(self) -> bool:
        return bool(self._run("partition_audit")[0][0])

    def add_partitions(self) -> int:
        return int(self._run("add_partitions")[0][0])

    def _run(self, *queries: str, **given: Any) -> Rows:
        """Run the queries in a transaction of their own, and return the rows of the last one."""
        session = self._session
        session.check()
        *first, last = (session.statement(query, given, answers=query == queries[-1]) for query in queries)

        def work(conn: psycopg.Connection[Any]) -> Rows:
            run = runner(conn)
            for statement in first:
                run(statement)
            return run(last)

        return session.pool.transact(work)

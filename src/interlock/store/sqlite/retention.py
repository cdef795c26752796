"""Deletion of old jobs and their audit on SQLite."""

from collections.abc import Callable, Sequence

from ...core.job import AuditEntry, Phase
from ...errors import UsageError
from ..archive import digest_of
from ..open_transactions import inside
from ..tx import PlainTx
from . import rows
from .file import runner
from .inspect import read_histories
from .session import SqliteSession


class SqliteRetention:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def prune(self, *, phase: Phase, age: float, limit: int, kinds: Sequence[str] | None = None) -> int:
        now = self._session.timestamp()
        given = {
            "phase": phase,
            "before": now.plus(-age),
            "now": now.text,
            "limit": limit,
            "kinds": None if kinds is None else rows.array(kinds),
        }
        return self._session.count_changed("prune", given)

    def forget_windows(self, limit: int) -> int:
        given = {"limit": limit, "before": self._session.timestamp().plus(-60.0)}
        return self._session.count_changed("unique_windows.forget", given)

    def archive(self, *, age: float, write: Callable[[Sequence[AuditEntry]], None], limit: int) -> int:
        session = self._session
        session.check()
        now = session.timestamp()
        with session.file.write() as conn:
            run = runner(conn)
            found = run(session.statement("archivable", {"before": now.plus(-age), "limit": limit}))
            ids: list[str] = [row[0] for row in found]
            if ids:
                histories = read_histories(run, session.queries["history"], ids)
                with inside(session, PlainTx(conn, session.file.converting)):
                    write([entry for id in ids for entry in histories[id]])
                archived = [
                    {"job_id": id, "entries": len(entries), "digest": digest_of(entries), "now": now.text}
                    for id, entries in histories.items()
                ]
                conn.executemany(session.queries["archive"], archived)
                conn.executemany(session.queries["delete_audit"], archived)
            return len(ids)

    def remove_archived(self, *, age: float, limit: int) -> bool:  # noqa: ARG002 - `archive` leaves nothing to remove
        return False

    def partition_audit(self) -> bool:
        raise UsageError("SQLite has no partitions: `interlock audit archive` deletes the archived rows.")

    def add_partitions(self) -> int:
        return 0

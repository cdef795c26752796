"""Limits and pauses on SQLite."""

from typing import Any

from ...core.limits import Rate, Scope
from ..flow_types import LimitChange, LimitSeen, Operation
from ..limit_columns import change_columns, limit_seen, operation, operation_columns
from .file import runner
from .limited_claim import tokens_now
from .session import SqliteSession
from .timestamps import when


class SqliteLimits:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session

    def change(self, scope: Scope, name: str, change: LimitChange, *, by: str, reason: str | None) -> None:
        self._write("limits.change", change_columns(scope, name, change, by, reason) | {"event": "limit"})

    def reset(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        return self._write("limits.reset", operation_columns(scope, name, by, reason) | {"event": "reset"})

    def pause(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        return self._write("limits.pause", operation_columns(scope, name, by, reason) | {"event": "pause"})

    def resume(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        return self._write("limits.resume", operation_columns(scope, name, by, reason) | {"event": "resume"})

    def _write(self, query: str, given: dict[str, Any]) -> bool:
        """Write a change with its operation. Returns whether there was something to change."""
        session = self._session
        session.check()
        with session.file.write() as conn:
            run, all_given = runner(conn), {"detail": None} | given | {"now": session.timestamp().text}
            if not run(session.statement(query, all_given)):
                return False
            run(session.statement("operations.add", all_given, answers=False))
            run(session.statement("limits.announce", all_given, answers=False))
            run(session.statement("limits.drop_unused", {}, answers=False))
            return True

    def all(self) -> list[LimitSeen]:
        now = self._session.timestamp().at
        found: list[LimitSeen] = []
        for row in self._session.read("limits.all", {}):
            count, seconds, burst = row[3:6]
            tokens, at = row[12:]
            rate = None if count is None else Rate(count, seconds)
            wait = 0.0 if rate is None else rate.wait(tokens_now(rate, burst, tokens, at, now))
            found.append(limit_seen((*row[:12], wait), when))
        return found

    def of_key(self, kind: str, key: str) -> tuple[int, float]:
        running, tokens, at = self._session.read("key_jobs.state", {"kind": kind, "key": key})[0]
        limit = next((each for each in self.all() if (each.scope, each.name) == ("key", kind)), None)
        if limit is None or limit.limit.bucket is None:
            return running, 0.0
        rate, burst = limit.limit.bucket
        return running, rate.wait(tokens_now(rate, burst, tokens, at, self._session.timestamp().at))

    def operations(
        self, *, scope: str | None = None, name: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[Operation]:
        given = {"scope": scope, "name": name, "limit": max(limit, 0), "after": after}
        return [operation(row, when) for row in self._session.read("operations", given)]

    def forget_keys(self) -> int:
        return self._session.count_changed("key_rates.forget", {"now": self._session.timestamp().text})

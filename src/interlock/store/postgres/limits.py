"""Limits and pauses on PostgreSQL."""

from typing import Any

from ...core.limits import Scope
from ..codec import is_id
from ..enqueue_plan import Statement
from ..flow_types import LimitChange, LimitSeen, Operation
from ..limit_columns import change_columns, limit_seen, operation, operation_columns
from .session import PostgresSession, as_is


class PostgresLimits:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def change(self, scope: Scope, name: str, change: LimitChange, *, by: str, reason: str | None) -> None:
        self._write("limits.change", change_columns(scope, name, change, by, reason), answers=False)

    def reset(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        return self._write("limits.reset", operation_columns(scope, name, by, reason))

    def pause(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        return self._write("limits.pause", operation_columns(scope, name, by, reason))

    def resume(self, scope: Scope, name: str, *, by: str, reason: str | None) -> bool:
        return self._write("limits.resume", operation_columns(scope, name, by, reason))

    def _write(self, query: str, given: dict[str, Any], *, answers: bool = True) -> bool:
        """Write a change, wake the workers, and wait for the claims that run now.

        Returns whether there was something to change.
        """
        session = self._session
        session.check()
        statements = [
            session.statement(query, given, answers=answers),
            session.statement("limits.announce", {"scope": given["scope"], "name": given["name"]}),
            Statement(session.queries["limits.drop_unused"], {}, answers=False),
            Statement(session.queries["limits.wait"], {}, answers=False),
        ]
        return bool(session.fixed.with_fixed_plans(session.fixed_plans, *statements)[0])

    def all(self) -> list[LimitSeen]:
        return [limit_seen(row, as_is) for row in self._session.read_with_fixed_plan("limits.all", {})]

    def of_key(self, kind: str, key: str) -> tuple[int, float]:
        running, wait = self._session.read_with_fixed_plan("limits.of_key", {"kind": kind, "key": key})[0]
        return running, wait or 0.0

    def operations(
        self, *, scope: str | None = None, name: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[Operation]:
        if after is not None and not is_id(after):
            return []
        given = {"scope": scope, "name": name, "limit": max(limit, 0), "after": after}
        return [operation(row, as_is) for row in self._session.read("operations", given)]

    def forget_keys(self) -> int:
        return self._session.count_changed("key_rates.forget", {})

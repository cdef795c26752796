"""A store with its guards switched off, to show that the guards prevent duplicate effects."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from interlock.core.job import Job
from interlock.core.transition import Move, Take
from interlock.store import OpenStore
from tests.crash.crash_app import Setting


class Unguarded:
    """A store that ignores its own refusals: a worker commits even if it no longer owns the job."""

    def __init__(self, store: OpenStore) -> None:
        self._store, self._transitions = store, store.transitions
        self.transitions = self
        setting = Setting.of(os.environ)
        table, mark = ("interlock_executions", "?") if setting.on_sqlite else (f"{setting.schema}.executions", "%s")
        self._done = f"""
          UPDATE {table} SET status = 'DONE', ended_by = 'succeed', committed_at = finished_at WHERE job_id = {mark} AND attempt = {mark}"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transitions if name in {"move", "take"} else self._store, name)

    def commit(
        self,
        move: Move | Take,
        body: Callable[[Any, Job], None],
        *,
        transaction: Callable[[], AbstractContextManager[Any]] | None = None,
        timeout: float = 60.0,
    ) -> None:
        if self._transitions.commit(move, body, transaction=transaction, timeout=timeout) is None:
            return
        job = self._store.inspect.get(move.job_id)
        with self._store.transaction() as tx:
            body(tx, job)
            tx.execute(self._done, (move.job_id, move.attempt))

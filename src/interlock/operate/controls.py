"""The limits of a queue or a kind at run time, and the verbs that pause and resume it."""

from collections.abc import Callable

from ..core.limits import Scope
from ..core.payload import clean
from ..errors import UsageError
from ..jobs.async_twin import async_twin
from ..store import OpenStore
from ..store.flow_types import UNCHANGED, LimitChange, Unchanged
from .operator import operator_name

FindStore = Callable[[str], OpenStore]
"""Returns the store, for a verb that needs its own transaction."""


class QueueControls:
    """Limits and pauses of one queue. Each change is recorded with who made it, and why."""

    scope: Scope = "queue"

    def __init__(self, name: str, find_store: FindStore) -> None:
        self.name = name
        self._find_store = find_store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def limit(
        self,
        *,
        max_running: int | Unchanged | None = UNCHANGED,
        rate: str | Unchanged | None = UNCHANGED,
        burst: int | None = None,
        by: str = "app",
        reason: str = "",
    ) -> None:
        """Change the limits. None removes one, and one that is left out stays as it is.

        The change applies to all workers at once, and stays until the next one or `reset_limits`.
        """
        self._change(self.scope, LimitChange(max_running, rate, burst), by, reason)

    def reset_limits(self, *, by: str = "app", reason: str = "") -> bool:
        """Return to the limits that the code declares. False if nothing was changed at run time."""
        store = self._store("reset_limits")
        scopes: tuple[Scope, ...] = ("kind", "key") if self.scope == "kind" else (self.scope,)
        done = [store.limits.reset(scope, self.name, by=operator_name(by), reason=_text(reason)) for scope in scopes]
        return any(done)

    def pause(self, *, by: str, reason: str = "") -> bool:
        """Claim no more jobs until `resume`. False if it is paused already.

        Running jobs continue. A worker may have claimed a few short jobs in advance; these still run.
        """
        store = self._store("pause")
        return store.limits.pause(self.scope, self.name, by=operator_name(by), reason=_text(reason))

    def resume(self, *, by: str, reason: str = "") -> bool:
        """End the pause. False if there is none."""
        store = self._store("resume")
        return store.limits.resume(self.scope, self.name, by=operator_name(by), reason=_text(reason))

    def _change(self, scope: Scope, change: LimitChange, by: str, reason: str) -> None:
        if change.max_running is UNCHANGED and change.rate is UNCHANGED:
            raise UsageError("Give a limit to change: max_running, or rate with burst. None removes a limit.")
        store = self._store("limit")
        store.limits.change(scope, self.name, change, by=operator_name(by), reason=_text(reason))

    def _store(self, verb: str) -> OpenStore:
        return self._find_store(f"app.{self.scope}(…).{verb}")

    alimit = async_twin(limit)
    areset_limits = async_twin(reset_limits)
    apause = async_twin(pause)
    aresume = async_twin(resume)


class KindControls(QueueControls):
    """Limits and pauses of one kind, and the limits of each of its concurrency keys."""

    scope: Scope = "kind"

    def limit_per_key(
        self,
        *,
        max_running: int | Unchanged | None = UNCHANGED,
        rate: str | Unchanged | None = UNCHANGED,
        burst: int | None = None,
        by: str = "app",
        reason: str = "",
    ) -> None:
        """Change the limits of each concurrency key, as `limit` does for the whole kind."""
        self._change("key", LimitChange(max_running, rate, burst), by, reason)

    alimit_per_key = async_twin(limit_per_key)


def _text(reason: str) -> str | None:
    return clean(reason) or None

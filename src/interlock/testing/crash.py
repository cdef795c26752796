"""Simulated crashes: the worker loses its store, so that it can write nothing more, and then ends."""

from collections.abc import Callable
from typing import Any

from ..errors import InterlockError
from ..store import OpenStore
from ..store.contract import PARTS


class Crashed(InterlockError):
    """The worker died at the point that the test named. The database is as `kill -9` leaves it."""


class _Part:
    """A part of the store. Its methods raise `Crashed` after the store is revoked."""

    def __init__(self, part: object, guarded: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._part, self._guarded = part, guarded

    def uptime(self) -> float | None:
        """Return None, so that a worker does not wait for others to renew after a recent start of the server."""
        return None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._part, name)
        return self._guarded(verb) if callable(verb) else verb


class RevocableStore:
    """A store that a test can revoke from its worker at any moment."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.revoked: Crashed | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if name in PARTS:
            return _Part(value, self._guarded)
        return self._guarded(value) if callable(value) else value

    def _guarded(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.revoked is not None:
                raise Crashed(f"{self.revoked} Its later writes are refused.")
            return verb(*args, **kwargs)

        return guarded

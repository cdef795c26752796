"""A process that dies, as far as its database can tell: its way to the store is taken away first, and only then is it ended."""

from collections.abc import Callable
from typing import Any

from ..errors import InterlockError
from ..stores import OpenStore


class Crashed(InterlockError):
    """The worker died where the test wanted it to. The database is as a kill -9 leaves it."""


class Handle:
    """A worker's way to the store, which can be taken away from it at any moment."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.revoked: Crashed | None = None

    def up_for(self) -> float | None:
        """Unknown: that a test's server has only just started is no reason to let its workers renew first."""
        return None

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        return self._guarded(verb) if callable(verb) else verb

    def _guarded(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.revoked is not None:
                raise Crashed(f"{self.revoked} What it tries to write after that is not written.")
            return verb(*args, **kwargs)

        return guarded

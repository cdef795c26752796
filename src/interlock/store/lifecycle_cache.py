"""The registered lifecycles of a database. They never change, so each is read once."""

from collections.abc import Callable
from typing import Any

from ..core.lifecycle import Lifecycle
from ..errors import NotFound, NotMigrated
from .enqueue_plan import Rows


class LifecycleCache:
    """Versions and lifecycles, read by the queries `version_of` and `lifecycle`."""

    def __init__(self, read: Callable[[str, dict[str, Any]], Rows]) -> None:
        self._read = read
        self._versions: dict[tuple[str, str], int] = {}
        self._lifecycles: dict[tuple[str, int], Lifecycle] = {}

    def version_of(self, lifecycle: Lifecycle) -> int:
        key = (lifecycle.name, lifecycle.digest)
        if key not in self._versions:
            rows = self._read("version_of", {"name": lifecycle.name, "digest": lifecycle.digest})
            if not rows:
                raise NotMigrated(
                    f"The lifecycle {lifecycle.name!r} is not registered here with the transitions of this code; "
                    "run: interlock migrate -A module:app"
                )
            self._versions[key] = int(rows[0][0])
        return self._versions[key]

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        key = (name, version)
        if key not in self._lifecycles:
            rows = self._read("lifecycle", {"name": name, "version": version})
            if not rows:
                raise NotFound(f"This database has no version {version} of a lifecycle {name!r}.")
            self._lifecycles[key] = Lifecycle(
                name, transitions=[(row[1], row[2], row[3]) for row in rows], initial=rows[0][0]
            )
        return self._lifecycles[key]

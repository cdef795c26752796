"""Migrations and registered lifecycles and kinds on SQLite."""

from collections.abc import Sequence

from ...core.lifecycle import Lifecycle
from .. import codec
from ..enqueue_plan import Statement
from ..flow_types import DeclaredLimit
from ..lifecycle_cache import LifecycleCache
from ..types import Declared, KindFacts, Migrated
from . import migrations
from .file import runner
from .session import SqliteSession


class SqliteRegistry:
    def __init__(self, session: SqliteSession) -> None:
        self._session = session
        self._cache = LifecycleCache(session.read)

    def migrate(
        self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts], limits: Sequence[DeclaredLimit] = ()
    ) -> Migrated:
        with self._session.file.write() as conn:
            declared = Declared(lifecycles, kinds, limits)
            return migrations.migrate(runner(conn), self._session.queries, self._session.schema, declared)

    def migration_sql(
        self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts], limits: Sequence[DeclaredLimit] = ()
    ) -> str:
        return migrations.as_text(self._session.queries, self._session.schema, Declared(lifecycles, kinds, limits))

    def is_empty(self) -> bool:
        return self._session.schema_version() is None

    def is_new(self) -> bool:
        file = self._session.file
        if not file.exists():
            return True
        return bool(file.read(lambda run: run(Statement(self._session.queries["instance.tables"], {}))[0][0]) == 0)

    def version_of(self, lifecycle: Lifecycle) -> int:
        return self._cache.version_of(lifecycle)

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        return self._cache.lifecycle(name, version)

    def kind(self, name: str) -> KindFacts | None:
        found = self._session.read("kind", {"name": name})
        return codec.kind(found[0]) if found else None

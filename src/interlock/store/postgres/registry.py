"""Migrations and registered lifecycles and kinds on PostgreSQL."""

from collections.abc import Sequence

from ...core.lifecycle import Lifecycle
from .. import codec
from ..flow_types import DeclaredLimit
from ..lifecycle_cache import LifecycleCache
from ..types import Declared, KindFacts, Migrated
from . import migrations
from .session import PostgresSession


class PostgresRegistry:
    def __init__(self, session: PostgresSession) -> None:
        self._session = session
        self._cache = LifecycleCache(session.read)

    def migrate(
        self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts], limits: Sequence[DeclaredLimit] = ()
    ) -> Migrated:
        session = self._session
        return session.pool.transact(
            lambda conn: migrations.migrate(conn, session.queries, session.schema, Declared(lifecycles, kinds, limits))
        )

    def migration_sql(
        self, lifecycles: Sequence[Lifecycle], kinds: Sequence[KindFacts], limits: Sequence[DeclaredLimit] = ()
    ) -> str:
        return migrations.as_text(self._session.queries, self._session.schema, Declared(lifecycles, kinds, limits))

    def is_empty(self) -> bool:
        return self._session.schema_version() is None

    def is_new(self) -> bool:
        return False

    def version_of(self, lifecycle: Lifecycle) -> int:
        return self._cache.version_of(lifecycle)

    def lifecycle(self, name: str, version: int) -> Lifecycle:
        return self._cache.lifecycle(name, version)

    def kind(self, name: str) -> KindFacts | None:
        rows = self._session.read("kind", {"name": name})
        return codec.kind(rows[0]) if rows else None

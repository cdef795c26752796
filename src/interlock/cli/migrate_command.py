"""`interlock migrate`: creates or updates the tables and registers the app's lifecycles and kinds."""

from typing import Annotated, Any

import typer

from ..app import App
from ..store.database import migrate as migrate_store
from ..store.types import Migrated
from . import output
from .common_options import (
    AppOption,
    DatabaseOption,
    check_reachable,
    name_database_errors,
    open_unmigrated,
    require_app,
)


def migrate(
    app: AppOption = None,
    database: DatabaseOption = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for an empty database and change nothing.")] = False,
) -> None:
    """Update the database to this version and register the app's lifecycles and kinds.

    In a deploy, run it before the first new worker starts. Running it again changes nothing.

    Example: interlock migrate -A shop:app --database postgresql://localhost/shop
    """
    chosen = require_app(app)
    url = database or chosen.database.url
    with chosen.bound_to(url), name_database_errors(url):
        migrated = _migrate(chosen, sql)
    if migrated is None:
        return
    for note in migrated.notes or ("nothing to change: the database is up to date with the app",):
        output.print_line(note)
    versions = ", ".join(f"{name} (version {version})" for name, version in sorted(migrated.versions.items()))
    output.print_line(f"lifecycles: {versions}")
    output.print_line(f"kinds: {', '.join(sorted(chosen.kinds)) or 'none'}")


def _migrate(app: App[Any], sql: bool) -> Migrated | None:
    store = open_unmigrated(app)
    try:
        if not sql:
            check_reachable(app.database.url)
            return migrate_store(store, app.declared())
        declared = app.declared()
        output.print_line(store.registry.migration_sql(declared.lifecycles, declared.kinds, declared.limits))
        return None
    finally:
        store.close()

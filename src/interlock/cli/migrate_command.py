"""`interlock migrate`: the schema, and what the app declares, into the database."""

from typing import Annotated, Any

import typer

from ..app import App
from ..records import Migrated
from . import screen
from .target import AppOption, DatabaseOption, answering, as_it_is, facts, knock, lifecycles, needed


def migrate(
    app: AppOption = None, database: DatabaseOption = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for an empty database, and change nothing.")] = False,
) -> None:
    """Bring the database to this code's version, and register the app's lifecycles and kinds.

    Run it before the code that needs it: in a deploy, before the first new worker starts. Running it again changes nothing.

    Example: interlock migrate -A shop:app --database postgresql://localhost/shop
    """
    chosen = needed(app)
    url = database or chosen.database.url
    with chosen.bound_to(url), answering(url):
        migrated = _migrate(chosen, sql)
    if migrated is None:
        return
    for note in migrated.notes or ("nothing to change: this database knows all that the app declares",):
        screen.say(note)
    versions = ", ".join(f"{name} (version {version})" for name, version in sorted(migrated.versions.items()))
    screen.say(f"lifecycles: {versions}")
    screen.say(f"kinds: {', '.join(sorted(chosen.kinds)) or 'none'}")


def _migrate(app: App[Any], sql: bool) -> Migrated | None:
    store = as_it_is(app)
    try:
        if not sql:
            knock(app.database.url)
            return store.migrate(lifecycles(app), facts(app))
        screen.say(store.migration(lifecycles(app), facts(app)))
        return None
    finally:
        store.close()

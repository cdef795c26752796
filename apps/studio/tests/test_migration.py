"""The migration: it is repeatable, fills new balances, and replaces outdated views."""

from sqlalchemy import Engine, inspect, text

from apps.common.database import create_view, make_engine
from apps.studio import ledger, tables
from apps.studio.ledger import Balance
from apps.studio.tables import signing_secret
from apps.studio.tests.ledger_kit import job, refused, together, user
from interlock import App


def test_migration_fills_the_balances_of_an_earlier_version(engine: Engine) -> None:
    with engine.begin() as tx:
        ada, bob = user(tx, credits=9), user(tx, "bob")
        ledger.reserve(tx, ada, job(), 2)
        done = job()
        ledger.reserve(tx, ada, done, 3)
        ledger.settle(tx, done, "capture")
        before = ledger.balance(tx, ada)
        tx.execute(
            text(
                "DROP TRIGGER studio_entries_counted"
                + (" ON studio_entries" if engine.dialect.name == "postgresql" else "")
            )
        )
        tx.execute(text("DROP TABLE studio_balances"))
    tables.migrate(engine)
    with engine.begin() as tx:
        assert (ledger.balance(tx, ada), ledger.balance(tx, bob)) == (before, Balance(0, 0, 0, 0, 0))
        ledger.grant(tx, bob, 4, None)
        ledger.reserve(tx, ada, job(), 4)
        assert (ledger.balance(tx, ada).available, ledger.balance(tx, bob).available) == (0, 4)


def shape(engine: Engine) -> object:
    """The names of all tables, columns and triggers, and the secret."""
    seals = (
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        if engine.dialect.name == "sqlite"
        else "SELECT tgname FROM pg_trigger"
    )
    with engine.begin() as tx:
        found, triggers = inspect(tx), sorted(tx.scalars(text(seals)))
        indexes = {
            table: sorted(str(index["name"]) for index in found.get_indexes(table)) for table in found.get_table_names()
        }
        return indexes, found.get_view_names(), triggers, signing_secret(tx)


def test_migrating_twice_changes_nothing(engine: Engine) -> None:
    before = shape(engine)
    with engine.begin() as tx:
        user(tx, credits=9)
    tables.migrate(engine)
    assert shape(engine) == before
    refused(engine, lambda tx: tx.execute(text("DELETE FROM studio_entries")))


OLDER = tables.VIEW.replace(" + CASE WHEN j.state = 'dead_letter' AND j.tries_left > 0 THEN 1 ELSE 0 END", "")


def test_migration_replaces_an_outdated_view(engine: Engine) -> None:
    """Views that depend on it keep working."""
    assert OLDER != tables.VIEW
    with engine.begin() as tx:
        tx.execute(text(f"DROP VIEW {tables.jobs.name}"))
        create_view(tx, tables.jobs, OLDER)
        tx.execute(text('CREATE VIEW of_theirs AS SELECT "retryCount" FROM studio_jobs'))
    tables.migrate(engine)
    kept = inspect(engine).get_view_definition(tables.jobs.name) or ""
    assert "CASE" in kept
    with engine.begin() as tx:
        assert tx.execute(text("SELECT * FROM of_theirs")).all() == []
        tx.execute(text("DROP VIEW of_theirs"))


def test_processes_can_migrate_at_the_same_time(database_url: str) -> None:
    """One creates the tables, the others find them."""
    app = App(database_url)
    app.migrate()
    app.close()
    engines = [make_engine(database_url) for _ in range(6)]
    together(6, lambda number: tables.migrate(engines[number]))
    shapes = [shape(engine) for engine in engines]
    assert shapes.count(shapes[0]) == 6
    with engines[0].begin() as tx:
        user(tx, credits=9)
    refused(engines[0], lambda tx: tx.execute(text("DELETE FROM studio_entries")))
    for engine in engines:
        engine.dispose()

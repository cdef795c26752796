"""The ledger: what is granted is available, reserved, captured or forfeited, entries are for ever, and the database lets no job be paid for twice."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, event, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from apps.common.database import connect, create_view
from apps.studio import ledger, tables
from apps.studio.errors import Refusal, StudioError
from apps.studio.ledger import SETTLEMENTS, Balance, Settled
from apps.studio.tables import entries, secret_of, users
from interlock import App


def made(url: str) -> Engine:
    app = App(url)
    app.migrate()
    app.close()
    engine = connect(url)
    tables.migrate(engine)
    return engine


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """Of a database with the studio's own tables, and no user in it."""
    engine = made(database_url)
    yield engine
    engine.dispose()


def user(tx: Connection, name: str = "ada", credits: int = 0) -> int:
    id = tx.execute(users.insert().values(name=name, key_hash=name)).inserted_primary_key[0]
    if credits:
        ledger.grant(tx, id, credits, "to begin with")
    return id


def job() -> str:
    return str(uuid4())


# ---------------------------------------------------------------- sums
def test_a_user_without_entries_has_nothing(engine: Engine) -> None:
    with engine.begin() as tx:
        assert ledger.balance(tx, user(tx)) == Balance(0, 0, 0, 0, 0)


def test_what_is_granted_is_available_reserved_captured_or_forfeited(engine: Engine) -> None:
    with engine.begin() as tx:
        ada, other = user(tx, credits=7), user(tx, "bob", 100)
        ledger.grant(tx, ada, 4, None)
        jobs = [job() for _ in range(4)]
        for number, each in enumerate(jobs, start=1):
            ledger.reserve(tx, ada, each, number)
        assert ledger.balance(tx, ada) == Balance(11, 1, 10, 0, 0)
        for entry, each in zip(SETTLEMENTS, jobs, strict=False):
            ledger.settle(tx, each, entry)
            balance = ledger.balance(tx, ada)
            assert balance.granted == sum(astuple(balance)[1:])
        assert ledger.balance(tx, ada) == Balance(11, 4, 4, 1, 2), "captured 1, forfeited 2, released 3, and 4 are still reserved"
        assert ledger.balance(tx, other) == Balance(100, 100, 0, 0, 0)


@pytest.mark.parametrize("entry", SETTLEMENTS)
def test_a_settlement_is_of_exactly_what_was_reserved(engine: Engine, entry: Settled) -> None:
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 3)
        ledger.settle(tx, one, entry, "why")
        line = ledger.statement(tx, ada)[0]
        assert (line.entry, line.amount, line.job_id, line.note) == (entry, 3, one, "why")
        moments = [each.at for each in ledger.statement(tx, ada)]
        assert moments == sorted(moments, reverse=True)
        assert moments[0] > moments[1], "at its own moment, not that of the reserve"


def test_what_was_never_reserved_cannot_be_settled(engine: Engine) -> None:
    with engine.begin() as tx:
        user(tx, credits=9)
        with pytest.raises(StudioError, match="Nothing is reserved"):
            ledger.settle(tx, job(), "capture")


def test_a_statement_has_the_newest_first_and_no_more_than_asked(engine: Engine) -> None:
    with engine.begin() as tx:
        ada = user(tx)
        for amount in range(1, 6):
            ledger.grant(tx, ada, amount, f"number {amount}")
        assert [line.amount for line in ledger.statement(tx, ada, limit=3)] == [5, 4, 3]
        assert {(line.entry, line.job_id) for line in ledger.statement(tx, ada)} == {("grant", None)}


# ---------------------------------------------------------------- what is refused
def test_no_more_is_reserved_than_is_available(engine: Engine) -> None:
    with engine.begin() as tx:
        ada = user(tx, credits=3)
        ledger.reserve(tx, ada, job(), 2)
        with pytest.raises(Refusal, match="The price is 2, and of your credits 1 can be used") as refused:
            ledger.reserve(tx, ada, job(), 2)
        assert refused.value.code == "credits_insufficient"
        ledger.reserve(tx, ada, job(), 1)
        assert ledger.balance(tx, ada).available == 0


def test_a_user_who_is_not_there_reserves_nothing(engine: Engine) -> None:
    with engine.begin() as tx, pytest.raises(Refusal) as refused:
        ledger.reserve(tx, 4711, job(), 1)
    assert refused.value.code == "user_unknown"


def refused(engine: Engine, write: Callable[[Connection], object]) -> None:
    """The database itself says no, and nothing is changed."""
    with engine.begin() as tx:
        before = tx.execute(select(entries).order_by(entries.c.id)).all()
    with pytest.raises(DBAPIError), engine.begin() as tx:
        write(tx)
    with engine.begin() as tx:
        assert tx.execute(select(entries).order_by(entries.c.id)).all() == before


def test_a_job_is_reserved_for_once(engine: Engine) -> None:
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 1)
    refused(engine, lambda tx: ledger.reserve(tx, ada, one, 1))


@pytest.mark.parametrize("first", SETTLEMENTS)
@pytest.mark.parametrize("second", SETTLEMENTS)
def test_a_job_is_settled_once(engine: Engine, first: Settled, second: Settled) -> None:
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 1)
        ledger.settle(tx, one, first)
    refused(engine, lambda tx: ledger.settle(tx, one, second))


@pytest.mark.parametrize("row", [
    {"entry": "grant", "amount": 0}, {"entry": "grant", "amount": -5}, {"entry": "gift", "amount": 1}, {"entry": "grant", "amount": 1, "job_id": job()},
    {"entry": "reserve", "amount": 1}, {"entry": "capture", "amount": 1}, {"entry": "grant", "amount": 1, "user_id": 4711},
])
def test_an_entry_that_makes_no_sense_is_refused(engine: Engine, row: dict[str, object]) -> None:
    """Nothing or less, an unknown word, a grant for a job, a reserve for none, nobody's."""
    with engine.begin() as tx:
        ada = user(tx, credits=9)
    refused(engine, lambda tx: tx.execute(entries.insert().values(**{"user_id": ada, **row})))


@pytest.mark.parametrize("sql", [
    "UPDATE studio_entries SET amount = 1000", "UPDATE studio_entries SET note = 'x' WHERE id = 1", "DELETE FROM studio_entries",
    "DELETE FROM studio_entries WHERE id = 1", "TRUNCATE studio_entries", "TRUNCATE studio_users CASCADE",
    "INSERT OR REPLACE INTO studio_entries (id, at, user_id, entry, amount) VALUES (1, '2031-05-06T07:08:09.000000Z', 1, 'grant', 1000)",
    "INSERT INTO studio_entries (id, at, user_id, entry, amount) VALUES (1, '2031-05-06T07:08:09Z', 1, 'grant', 1) ON CONFLICT (id) DO UPDATE SET amount = 9",
])
def test_no_entry_is_ever_changed_or_deleted(engine: Engine, sql: str) -> None:
    """By whatever program: the table refuses. What one store has no words for, it refuses as well."""
    with engine.begin() as tx:
        user(tx, credits=9)
    refused(engine, lambda tx: tx.execute(text(sql)))


@pytest.mark.parametrize("entry", ["reserve", *SETTLEMENTS])
def test_no_entry_of_a_job_is_put_out_by_another(engine: Engine, entry: str) -> None:
    """SQLite's REPLACE would make room under a unique key without a word."""
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 1)
        ledger.settle(tx, one, "release")
    row = {"user": ada, "job": one, "entry": entry}
    into = "studio_entries (at, user_id, job_id, entry, amount) VALUES ('2031-05-06T07:08:09.000000Z', :user, :job, :entry, 5)"
    refused(engine, lambda tx: tx.execute(text(f"INSERT {'OR REPLACE' if engine.dialect.name == 'sqlite' else ''} INTO {into}"), row))


# ---------------------------------------------------------------- many at once
def together(count: int, act: Callable[[int], object]) -> list[object]:
    """What came of it in each of so many threads, begun at one moment."""
    gate = threading.Barrier(count)

    def one(number: int) -> object:
        gate.wait(60)
        try:
            return act(number)
        except Refusal as refusal:
            return refusal.code

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.fixture
def connections(engine: Engine, database_url: str) -> Iterator[list[Connection]]:
    """Thirty-two that are open already, so that nobody is late for having to connect."""
    engines = [connect(database_url) for _ in range(32)]
    made = [each.connect() for each in engines]
    yield made
    for connection, each in zip(made, engines, strict=True):
        connection.close()
        each.dispose()


def test_of_many_at_once_no_more_reserve_than_there_are_credits_for(engine: Engine, connections: list[Connection]) -> None:
    with engine.begin() as tx:
        ada = user(tx, credits=3)

    def reserve(number: int) -> object:
        with connections[number].begin():
            ledger.reserve(connections[number], ada, job(), 3)
        return "reserved"

    assert sorted(map(str, together(32, reserve))) == ["credits_insufficient"] * 31 + ["reserved"]
    with engine.begin() as tx:
        assert ledger.balance(tx, ada) == Balance(3, 0, 3, 0, 0)


def test_of_many_at_once_one_settles(engine: Engine) -> None:
    with engine.begin() as tx:
        ada, one = user(tx, credits=3), job()
        ledger.reserve(tx, ada, one, 3)

    def settle(number: int) -> object:
        try:
            with engine.begin() as tx:
                ledger.settle(tx, one, SETTLEMENTS[number % 3])
        except IntegrityError:
            return "too late"
        return "settled"

    assert sorted(map(str, together(12, settle))) == ["settled"] + ["too late"] * 11
    with engine.begin() as tx:
        assert ledger.balance(tx, ada).reserved == 0


def test_balance_is_that_of_the_ledger_however_many_write_at_once(engine: Engine, connections: list[Connection]) -> None:
    """Grants, orders and settlements of two users, one of whom has no balance yet."""
    with engine.begin() as tx:
        people = [user(tx), user(tx, "bob")]

    def work(number: int) -> object:
        who, connection = people[number % 2], connections[number]
        for n in range(5):
            with connection.begin():
                ledger.grant(connection, who, 3, None)
            with connection.begin():
                one = job()
                ledger.reserve(connection, who, one, 2)
            if n:
                with connection.begin():
                    ledger.settle(connection, one, SETTLEMENTS[(number + n) % 3])
        return None

    together(16, work)
    with engine.begin() as tx:
        stored = {id: each.balance for id, each in ledger.standing(tx, people).items()}
        assert ledger.added_up(tx) == stored
        assert [each.granted for each in stored.values()] == [120, 120]


def test_entry_of_any_program_is_counted(engine: Engine) -> None:
    """INSERT OR REPLACE is a program's own way on SQLite, and replaces no balance."""
    with engine.begin() as tx:
        ada = user(tx, credits=9)
        words = "INSERT OR REPLACE" if engine.dialect.name == "sqlite" else "INSERT"
        tx.execute(text(f"{words} INTO studio_entries (id, at, user_id, entry, amount) VALUES (7, '2031-05-06T07:08:09.000000Z', {ada}, 'grant', 5)"))
        tx.execute(entries.insert().from_select(["at", "user_id", "entry", "amount"], select(
            entries.c.at, entries.c.user_id, entries.c.entry, entries.c.amount)))
        assert ledger.balance(tx, ada) == Balance(28, 28, 0, 0, 0)


def test_entry_that_is_rolled_back_is_not_counted(engine: Engine) -> None:
    with engine.begin() as tx:
        ada = user(tx, credits=9)
    with pytest.raises(KeyError), engine.begin() as tx:
        ledger.grant(tx, ada, 5, None)
        raise KeyError
    with engine.begin() as tx:
        assert ledger.balance(tx, ada).granted == 9


def test_balance_is_read_without_the_entries(engine: Engine) -> None:
    """However many there are: neither an order nor a balance query adds them up."""
    with engine.begin() as tx:
        ada = user(tx, credits=9)
        said: list[str] = []

        @event.listens_for(engine, "before_cursor_execute")
        def asked(_: object, __: object, statement: str, *___: object) -> None:
            said.append(statement)

        ledger.balance(tx, ada)
        ledger.afford(tx, ada, 1)
        ledger.reserve(tx, ada, job(), 1)
    assert [each.split()[0] for each in said if "studio_entries" in each] == ["INSERT"]


# ---------------------------------------------------------------- the tables
def test_database_of_an_earlier_version_gets_its_balances(engine: Engine) -> None:
    with engine.begin() as tx:
        ada, bob = user(tx, credits=9), user(tx, "bob")
        ledger.reserve(tx, ada, job(), 2)
        done = job()
        ledger.reserve(tx, ada, done, 3)
        ledger.settle(tx, done, "capture")
        before = ledger.balance(tx, ada)
        tx.execute(text(f"DROP TRIGGER studio_entries_counted{' ON studio_entries' if engine.dialect.name == 'postgresql' else ''}"))
        tx.execute(text("DROP TABLE studio_balances"))
    tables.migrate(engine)
    with engine.begin() as tx:
        assert (ledger.balance(tx, ada), ledger.balance(tx, bob)) == (before, Balance(0, 0, 0, 0, 0))
        ledger.grant(tx, bob, 4, None)
        ledger.reserve(tx, ada, job(), 4)
        assert (ledger.balance(tx, ada).available, ledger.balance(tx, bob).available) == (0, 4)
def shape(engine: Engine) -> object:
    """Everything that there is, by name, and the secret."""
    seals = "SELECT name FROM sqlite_master WHERE type = 'trigger'" if engine.dialect.name == "sqlite" else "SELECT tgname FROM pg_trigger"
    with engine.begin() as tx:
        found, triggers = inspect(tx), sorted(tx.scalars(text(seals)))
        indexes = {table: sorted(str(index["name"]) for index in found.get_indexes(table)) for table in found.get_table_names()}
        return indexes, found.get_view_names(), triggers, secret_of(tx)


def test_migrating_twice_changes_nothing(engine: Engine) -> None:
    before = shape(engine)
    with engine.begin() as tx:
        user(tx, credits=9)
    tables.migrate(engine)
    assert shape(engine) == before
    refused(engine, lambda tx: tx.execute(text("DELETE FROM studio_entries")))


OLDER = tables.VIEW.replace(" + CASE WHEN j.state = 'dead_letter' AND j.tries_left > 0 THEN 1 ELSE 0 END", "")


def test_a_view_that_was_reckoned_otherwise_is_made_anew(engine: Engine) -> None:
    """It has the same columns as before. Whoever reads it through a view of their own still can."""
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


def test_many_may_migrate_at_once(database_url: str) -> None:
    """As when all processes of a new version start together: one makes it, the others find it made."""
    app = App(database_url)
    app.migrate()
    app.close()
    engines = [connect(database_url) for _ in range(6)]
    together(6, lambda number: tables.migrate(engines[number]))
    shapes = [shape(engine) for engine in engines]
    assert shapes.count(shapes[0]) == 6
    with engines[0].begin() as tx:
        user(tx, credits=9)
    refused(engines[0], lambda tx: tx.execute(text("DELETE FROM studio_entries")))
    for engine in engines:
        engine.dispose()

"""The ledger: balances, append-only entries, and one payment per job, all enforced by the database."""

from collections.abc import Iterator
from dataclasses import astuple

import pytest
from sqlalchemy import Connection, Engine, event, select, text
from sqlalchemy.exc import IntegrityError

from apps.common.database import make_engine
from apps.studio import ledger
from apps.studio.errors import Refusal, StudioError
from apps.studio.ledger import SETTLEMENTS, Balance, Settlement
from apps.studio.tables import entries
from apps.studio.tests.ledger_kit import job, refused, together, user


# ---------------------------------------------------------------- sums
def test_user_without_entries_has_no_credits(engine: Engine) -> None:
    with engine.begin() as tx:
        assert ledger.balance(tx, user(tx)) == Balance(0, 0, 0, 0, 0)


def test_granted_credits_are_available_reserved_captured_or_forfeited(engine: Engine) -> None:
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
        assert ledger.balance(tx, ada) == Balance(11, 4, 4, 1, 2), (
            "captured 1, forfeited 2, released 3, and 4 are still reserved"
        )
        assert ledger.balance(tx, other) == Balance(100, 100, 0, 0, 0)


@pytest.mark.parametrize("entry", SETTLEMENTS)
def test_settlement_has_the_reserved_amount(engine: Engine, entry: Settlement) -> None:
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 3)
        ledger.settle(tx, one, entry, "why")
        line = ledger.statement(tx, ada)[0]
        assert (line.entry, line.amount, line.job_id, line.note) == (entry, 3, one, "why")
        moments = [each.at for each in ledger.statement(tx, ada)]
        assert moments == sorted(moments, reverse=True)
        assert moments[0] > moments[1], "at its own moment, not that of the reserve"


def test_unreserved_credits_cannot_be_settled(engine: Engine) -> None:
    with engine.begin() as tx:
        user(tx, credits=9)
        with pytest.raises(StudioError, match="none are reserved"):
            ledger.settle(tx, job(), "capture")


def test_statement_is_newest_first_up_to_the_limit(engine: Engine) -> None:
    with engine.begin() as tx:
        ada = user(tx)
        for amount in range(1, 6):
            ledger.grant(tx, ada, amount, f"number {amount}")
        assert [line.amount for line in ledger.statement(tx, ada, limit=3)] == [5, 4, 3]
        assert {(line.entry, line.job_id) for line in ledger.statement(tx, ada)} == {("grant", None)}


# ---------------------------------------------------------------- refused entries
def test_reservation_is_limited_by_the_available_credits(engine: Engine) -> None:
    with engine.begin() as tx:
        ada = user(tx, credits=3)
        ledger.reserve(tx, ada, job(), 2)
        with pytest.raises(Refusal, match="costs 2 credits; you have 1") as refused:
            ledger.reserve(tx, ada, job(), 2)
        assert refused.value.code == "credits_insufficient"
        ledger.reserve(tx, ada, job(), 1)
        assert ledger.balance(tx, ada).available == 0


def test_unknown_user_cannot_reserve(engine: Engine) -> None:
    with engine.begin() as tx, pytest.raises(Refusal) as refused:
        ledger.reserve(tx, 4711, job(), 1)
    assert refused.value.code == "user_unknown"


def test_job_is_reserved_once(engine: Engine) -> None:
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 1)
    refused(engine, lambda tx: ledger.reserve(tx, ada, one, 1))


@pytest.mark.parametrize("first", SETTLEMENTS)
@pytest.mark.parametrize("second", SETTLEMENTS)
def test_job_is_settled_once(engine: Engine, first: Settlement, second: Settlement) -> None:
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 1)
        ledger.settle(tx, one, first)
    refused(engine, lambda tx: ledger.settle(tx, one, second))


@pytest.mark.parametrize(
    "row",
    [
        {"entry": "grant", "amount": 0},
        {"entry": "grant", "amount": -5},
        {"entry": "gift", "amount": 1},
        {"entry": "grant", "amount": 1, "job_id": job()},
        {"entry": "reserve", "amount": 1},
        {"entry": "capture", "amount": 1},
        {"entry": "grant", "amount": 1, "user_id": 4711},
    ],
)
def test_invalid_entry_is_refused(engine: Engine, row: dict[str, object]) -> None:
    """The cases: no amount, an unknown entry, a grant with a job, a reserve without one, no user."""
    with engine.begin() as tx:
        ada = user(tx, credits=9)
    refused(engine, lambda tx: tx.execute(entries.insert().values(**{"user_id": ada, **row})))


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE studio_entries SET amount = 1000",
        "UPDATE studio_entries SET note = 'x' WHERE id = 1",
        "DELETE FROM studio_entries",
        "DELETE FROM studio_entries WHERE id = 1",
        "TRUNCATE studio_entries",
        "TRUNCATE studio_users CASCADE",
        (
            "INSERT OR REPLACE INTO studio_entries (id, at, user_id, entry, amount) VALUES (1, "
            "'2031-05-06T07:08:09.000000Z', 1, 'grant', 1000)"
        ),
        (
            "INSERT INTO studio_entries (id, at, user_id, entry, amount) "
            "VALUES (1, '2031-05-06T07:08:09Z', 1, 'grant', 1) "
            "ON CONFLICT (id) DO UPDATE SET amount = 9"
        ),
    ],
)
def test_entries_cannot_be_changed_or_deleted(engine: Engine, sql: str) -> None:
    """The database refuses it for any program."""
    with engine.begin() as tx:
        user(tx, credits=9)
    refused(engine, lambda tx: tx.execute(text(sql)))


@pytest.mark.parametrize("entry", ["reserve", *SETTLEMENTS])
def test_insert_or_replace_cannot_replace_an_entry(engine: Engine, entry: str) -> None:
    """SQLite's REPLACE would delete the conflicting row silently."""
    with engine.begin() as tx:
        ada, one = user(tx, credits=9), job()
        ledger.reserve(tx, ada, one, 1)
        ledger.settle(tx, one, "release")
    row = {"user": ada, "job": one, "entry": entry}
    values = "VALUES ('2031-05-06T07:08:09.000000Z', :user, :job, :entry, 5)"
    into = f"studio_entries (at, user_id, job_id, entry, amount) {values}"
    refused(
        engine,
        lambda tx: tx.execute(
            text(f"INSERT {'OR REPLACE' if engine.dialect.name == 'sqlite' else ''} INTO {into}"), row
        ),
    )


# ---------------------------------------------------------------- concurrency
@pytest.fixture
def connections(engine: Engine, database_url: str) -> Iterator[list[Connection]]:
    """Thirty-two open connections, so that no thread loses time by connecting."""
    engines = [make_engine(database_url) for _ in range(32)]
    made = [each.connect() for each in engines]
    yield made
    for connection, each in zip(made, engines, strict=True):
        connection.close()
        each.dispose()


def test_concurrent_reservations_never_overspend(engine: Engine, connections: list[Connection]) -> None:
    with engine.begin() as tx:
        ada = user(tx, credits=3)

    def reserve(number: int) -> object:
        with connections[number].begin():
            ledger.reserve(connections[number], ada, job(), 3)
        return "reserved"

    assert sorted(map(str, together(32, reserve))) == ["credits_insufficient"] * 31 + ["reserved"]
    with engine.begin() as tx:
        assert ledger.balance(tx, ada) == Balance(3, 0, 3, 0, 0)


def test_concurrent_settlements_settle_once(engine: Engine) -> None:
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


def test_balance_matches_the_ledger_after_concurrent_writes(engine: Engine, connections: list[Connection]) -> None:
    """The writes are grants, orders and settlements of two users, one of whom has no balance yet."""
    with engine.begin() as tx:
        users = [user(tx), user(tx, "bob")]

    def work(number: int) -> object:
        who, connection = users[number % 2], connections[number]
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
        stored = {id: each.balance for id, each in ledger.balance_versions(tx, users).items()}
        assert ledger.balances_from_entries(tx) == stored
        assert [each.granted for each in stored.values()] == [120, 120]


def test_entry_of_any_program_updates_the_balance(engine: Engine) -> None:
    """This includes INSERT OR REPLACE on SQLite."""
    with engine.begin() as tx:
        ada = user(tx, credits=9)
        words = "INSERT OR REPLACE" if engine.dialect.name == "sqlite" else "INSERT"
        tx.execute(
            text(
                f"{words} INTO studio_entries (id, at, user_id, entry, amount) "
                f"VALUES (7, '2031-05-06T07:08:09.000000Z', {ada}, 'grant', 5)"
            )
        )
        tx.execute(
            entries.insert().from_select(
                ["at", "user_id", "entry", "amount"],
                select(entries.c.at, entries.c.user_id, entries.c.entry, entries.c.amount),
            )
        )
        assert ledger.balance(tx, ada) == Balance(28, 28, 0, 0, 0)


def test_rolled_back_entry_is_not_counted(engine: Engine) -> None:
    with engine.begin() as tx:
        ada = user(tx, credits=9)
    with pytest.raises(KeyError), engine.begin() as tx:
        ledger.grant(tx, ada, 5, None)
        raise KeyError
    with engine.begin() as tx:
        assert ledger.balance(tx, ada).granted == 9


def test_balance_query_does_not_read_entries(engine: Engine) -> None:
    """Neither an order nor a balance query adds them up."""
    with engine.begin() as tx:
        ada = user(tx, credits=9)
        said: list[str] = []

        @event.listens_for(engine, "before_cursor_execute")
        def asked(_: object, __: object, statement: str, *___: object) -> None:
            said.append(statement)

        ledger.balance(tx, ada)
        ledger.check_affordable(tx, ada, 1)
        ledger.reserve(tx, ada, job(), 1)
    assert [each.split()[0] for each in said if "studio_entries" in each] == ["INSERT"]

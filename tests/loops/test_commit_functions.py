"""The functions that run inside a job's transactions, before them and after them: commit, guard, on_enter, finish."""

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pydantic
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from interlock import App, Fail, Job, Reject, Retry, Run, Snooze, SyncRun
from interlock.telemetry.events import FinishFailed
from interlock.testing import Crashed, Failpoint
from tests.kit import Place, SqliteRaw
from tests.loops.handler_bench import STEADY, Bench


class Ledger:
    """A user's own table, in the same database."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.migrate()
        bench.place.raw("CREATE TABLE {ledger} (job text, what text)")

    def write(self, tx: Any, job: Job, what: object) -> None:
        insert = self.bench.place.raw.words(f"INSERT INTO {{ledger}} VALUES ('{job.id}', '{what}')")
        tx.execute(text(insert) if hasattr(tx, "add") else insert)

    @property
    def rows(self) -> list[str]:
        return [str(row[0]) for row in self.bench.place.raw("SELECT what FROM {ledger}")]


class Order(pydantic.BaseModel):
    number: int


def ordering(bench: Bench, *raised: BaseException, **options: Any) -> tuple[Any, list[int], Callable[[], Ledger]]:
    """A kind with a commit function that writes to the user's table and then raises these errors, one per call; and the
    attempts of its handler.
    """
    errors, prepared, made = list(raised), list[int](), list[Ledger]()

    @bench.app.job(**{"backoff": STEADY, **options})
    async def order(run: Run, number: int = 7) -> Order:
        prepared.append(run.attempt)
        return Order(number=number)

    @order.commit
    def record(tx: Any, job: Job, value: Order) -> None:
        made[0].write(tx, job, value.number)
        if errors:
            raise errors.pop(0)

    def ledger() -> Ledger:
        made.append(Ledger(bench))
        return made[0]

    return order, prepared, ledger


# ---------------------------------------------------------------- commit
def test_what_a_commit_function_writes_is_there_exactly_once(bench: Bench) -> None:
    """With the value and the payload of its job, in the transaction that moves it."""
    order, prepared, make = ordering(bench)
    ledger = make()
    job = bench.run_one(order, 7)
    assert (job.state, job.result, prepared, ledger.rows) == ("SUCCEEDED", {"number": 7}, [1], ["7"])


def test_an_error_of_a_commit_function_rolls_back_and_follows_the_error_policy(bench: Bench) -> None:
    """As if the handler had raised it: another try, from the beginning."""
    order, prepared, make = ordering(bench, ConnectionResetError("lost"))
    ledger = make()
    job = bench.run_one(order)
    assert (job.phase, job.tries_left, bench.wait_of(job), ledger.rows) == ("pending", 2, 10, [])
    job = bench.again(job, 10)
    assert (job.state, prepared, ledger.rows) == ("SUCCEEDED", [1, 2], ["7"])


@pytest.mark.parametrize(
    ("error", "state", "wait"),
    [
        (Fail("sold out"), "FAILED", 0),
        (Reject("sold out"), "REJECTED", 0),
        (Retry("sold out", after=33), "PENDING", 33),
        (Snooze("sold out", after=44), "PENDING", 44),
    ],
    ids=repr,
)
def test_a_commit_function_may_answer_as_a_handler_does(
    bench: Bench, error: Exception, state: str, wait: float
) -> None:
    """Nothing of it is stored."""
    order, _, make = ordering(bench, error)
    ledger = make()
    job = bench.run_one(order)
    assert (job.state, ledger.rows) == (state, [])
    assert wait == (bench.wait_of(job) if wait else 0)


def test_a_deadlock_runs_the_commit_function_again_and_not_the_handler(bench: Bench) -> None:
    """Nothing of it had happened."""
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    contested = busy if isinstance(bench.place.raw, SqliteRaw) else psycopg.errors.DeadlockDetected()
    order, prepared, make = ordering(bench, contested, contested)
    ledger = make()
    job = bench.run_one(order)
    assert (job.state, job.attempt, prepared, ledger.rows) == ("SUCCEEDED", 1, [1], ["7"])


def test_a_commit_function_that_takes_too_long_is_rolled_back_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`commit_timeout` is in the sentence; the error may pass, so the job is tried again."""
    spent = [0.0]
    monkeypatch.setattr("interlock.store.commit_boundary.monotonic", lambda: spent[0])

    @bench.app.job(commit_timeout=5, backoff=STEADY)
    async def order(run: Run) -> None: ...

    @order.commit
    def record(tx: Any, job: Job, value: None) -> None:
        ledger.write(tx, job, job.attempt)
        spent[0] += 6 if job.attempt == 1 else 4

    ledger = Ledger(bench)
    job = bench.run_one(order)
    assert (job.phase, ledger.rows) == ("pending", [])
    assert "took longer than the 5 s that commit_timeout allows" in (job.last_error or "")
    assert (bench.again(job, 10).state, ledger.rows) == ("SUCCEEDED", ["2"])


def test_a_commit_of_a_stolen_job_stores_nothing_and_leaves_a_remark(bench: Bench) -> None:
    """The user's writes are rolled back with it; the next attempt stores its own, once."""
    order, prepared, make = ordering(bench)
    ledger = make()
    bench.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    job = bench.run_one(order)
    assert (job.state, prepared, ledger.rows) == ("SUCCEEDED", [1, 2], ["7"])
    assert [event for event, _ in bench.remarks(job)] == ["refused"]


def test_a_crash_in_the_commit_leaves_nothing_of_it(bench: Bench) -> None:
    """And after it everything: no attempt runs again then."""
    order, prepared, make = ordering(bench)
    ledger = make()
    id = bench.add(order)
    for point, rows in ((Failpoint.IN_COMMIT, []), (Failpoint.AFTER_COMMIT, ["7"])):
        bench.worker.crash_at(point)
        with pytest.raises(Crashed):
            bench.run()
        assert ledger.rows == rows
        bench.clock.advance(31)
    bench.run()
    assert (bench.app.get(id).state, prepared, ledger.rows) == ("SUCCEEDED", [1, 2], ["7"])


def test_the_transaction_is_closed_to_its_user(bench: Bench) -> None:
    """It offers `execute`, and refuses what would end it: the job fails, with a sentence that says so."""

    @bench.app.job()
    async def order(run: Run) -> None: ...

    @order.commit
    def record(tx: Any, job: Job, value: None) -> None:
        assert [name for name in dir(tx) if not name.startswith("_")] == ["connection", "execute"]
        tx.execute("COMMIT")

    job = bench.run_one(order)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "Interlock ends this transaction" in (job.last_error or "")


def test_the_next_job_of_a_chain_is_enqueued_in_the_same_transaction(bench: Bench) -> None:
    """It is there exactly if the commit is."""
    errors = [ValueError("after the enqueue")]

    @bench.app.job(backoff=STEADY)
    async def thank(run: Run, number: int) -> None: ...

    @bench.app.job(backoff=STEADY)
    async def order(run: Run) -> int:
        return 7

    @order.commit
    def record(tx: Any, job: Job, value: int) -> None:
        thank.using(conn=tx).enqueue(value)
        if errors:
            raise errors.pop()

    job = bench.run_one(order)
    assert bench.app.jobs(kind="thank") == []
    bench.again(job, 10)
    assert [each.state for each in bench.app.jobs(kind="thank")] == ["SUCCEEDED"]


# ---------------------------------------------------------------- the app's own transaction
@pytest.fixture
def session_bench(place: Place) -> Any:
    """A bench whose app opens sessions of SQLAlchemy."""
    engine = create_engine(place.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    bench = Bench(place, App(place.url, schema=place.schema, transaction=sessionmaker(engine).begin))
    yield bench
    bench.close()
    engine.dispose()


def test_a_commit_function_gets_the_users_own_session(session_bench: Bench) -> None:
    """What it adds lands with the commit, or not at all; so do the hooks, and `admit`."""
    bench, errors = session_bench, [ValueError("odd")]
    order, prepared, make = ordering(bench)
    kinds: list[str] = []

    @order.on_enter("SUCCEEDED")
    def enter(tx: Any, job: Job) -> None:
        kinds.append(type(tx).__name__)
        ledger.write(tx, job, "entered")
        if errors:
            raise errors.pop()

    @order.admit
    def admit(tx: Any, number: int = 7) -> None:
        kinds.append(type(tx).__name__)

    ledger = make()
    job = bench.run_one(order)
    assert (job.phase, ledger.rows) == ("pending", [])
    job = bench.again(job, 10)
    assert (job.state, prepared, ledger.rows, set(kinds)) == ("SUCCEEDED", [1, 2], ["7", "entered"], {"Session"})


def test_a_session_that_is_committed_inside_is_found_out(session_bench: Bench) -> None:
    """The job is not moved by that attempt, and the reason is told."""
    bench = session_bench

    @bench.app.job(tries=1)
    async def order(run: Run) -> None: ...

    @order.commit
    def record(tx: Any, job: Job, value: None) -> None:
        tx.commit()

    job = bench.run_one(order)
    assert job.state == "FAILED"
    assert "ended the transaction itself" in (job.last_error or "")


# ---------------------------------------------------------------- finish
def finishing(bench: Bench, *raised: BaseException, is_async: bool = True, tries: int = 3) -> tuple[Any, list[Any]]:
    """A kind whose finish raises these errors, one per call; and what happened in which order."""
    errors, seen = list(raised), list[Any]()

    @bench.app.job(tries=tries, backoff=STEADY)
    async def order(run: Run) -> Order:
        seen.append("prepare")
        return Order(number=7)

    def tell(run: Any, value: Order) -> None:
        seen.append((value, bench.last(bench.app.get(run.job_id)).status, bench.app.get(run.job_id).phase))
        if errors:
            raise errors.pop(0)

    async def atold(run: Run, value: Order) -> None:
        tell(run, value)

    def told(run: SyncRun, value: Order) -> None:
        tell(run, value)

    order.finish(atold if is_async else told)
    return order, seen


@pytest.mark.parametrize("is_async", [True, False])
def test_finish_runs_after_the_commit_with_the_committed_value(bench: Bench, is_async: bool) -> None:
    """The job has not succeeded before it returns."""
    order, seen = finishing(bench, is_async=is_async)
    job = bench.run_one(order)
    assert seen == ["prepare", (Order(number=7), "COMMITTED", "running")]
    assert (job.state, job.result) == ("SUCCEEDED", {"number": 7})


def test_finish_never_runs_before_a_commit(bench: Bench) -> None:
    """A commit function that raises leaves nothing to finish."""
    order, prepared, make = ordering(bench, ValueError("odd"))
    finished: list[int] = []

    @order.finish
    async def tell(run: Run, value: Order) -> None:
        finished.append(run.attempt)

    make()
    job = bench.run_one(order)
    assert (prepared, finished) == ([1], [])
    bench.again(job, 10)
    assert (prepared, finished) == ([1, 2], [2])


def test_a_finish_that_raises_is_tried_again_with_its_own_backoff_and_spends_no_try(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10, then 20 seconds; the handler does not run again."""
    slept: list[float] = []
    asleep = bench.worker.sleeper.asleep

    async def record(seconds: float) -> None:
        slept.append(seconds)
        await asleep(seconds)

    monkeypatch.setattr(bench.worker.sleeper, "asleep", record)
    order, seen = finishing(bench, ValueError("odd"), SystemExit(1))
    job = bench.run_one(order)
    assert (job.state, job.tries_left, seen.count("prepare"), len(seen), slept) == ("SUCCEEDED", 3, 1, 4, [10, 20])
    assert [event.failures for event in bench.heard(FinishFailed)] == [1, 2]


def test_a_finish_that_never_succeeds_is_given_up_and_shown(bench: Bench) -> None:
    """After as many failures as the kind has tries; the job has succeeded all the same."""
    order, seen = finishing(bench, *[ValueError("odd")] * 9, tries=4)
    job = bench.run_one(order)
    assert (job.state, len(seen), bench.statuses(job)) == ("SUCCEEDED", 5, ["DONE"])
    assert (bench.last(job).error or "").endswith("ValueError: odd")
    assert bench.app.history(job.id)[-1].reason == "finish_failed"


def test_a_crash_after_the_commit_leads_to_finish_alone(bench: Bench) -> None:
    """Whoever adopts the execution does not repeat what was committed."""
    order, seen = finishing(bench)
    id = bench.add(order)
    for point in (Failpoint.AFTER_COMMIT, Failpoint.IN_FINISH):
        bench.worker.crash_at(point)
        with pytest.raises(Crashed):
            bench.run()
        bench.clock.advance(31)
    bench.run()
    assert (bench.app.get(id).state, seen.count("prepare"), len(seen)) == ("SUCCEEDED", 1, 2)
    assert [each.holder for each in bench.app.executions(id)] == [3]

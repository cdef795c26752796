"""Commit functions, which run in the transaction of a success, and finish functions, which run after it."""

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
    """Declare a kind with a commit function that writes to the user's table and then raises these errors, one per call;
    return it with the recorded attempts of its handler.
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
def test_writes_of_a_commit_function_are_stored_exactly_once(bench: Bench) -> None:
    """They are stored in the transaction that moves the job."""
    order, prepared, make = ordering(bench)
    ledger = make()
    job = bench.run_one(order, 7)
    assert (job.state, job.result, prepared, ledger.rows) == ("SUCCEEDED", {"number": 7}, [1], ["7"])


def test_error_of_a_commit_function_rolls_back_and_follows_the_error_policy(bench: Bench) -> None:
    """The retry runs the handler again, as if the handler had raised the error."""
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
def test_commit_function_may_raise_retry_fail_reject_or_snooze(
    bench: Bench, error: Exception, state: str, wait: float
) -> None:
    """Its writes are rolled back."""
    order, _, make = ordering(bench, error)
    ledger = make()
    job = bench.run_one(order)
    assert (job.state, ledger.rows) == (state, [])
    assert wait == (bench.wait_of(job) if wait else 0)


def test_deadlock_reruns_the_commit_function_but_not_the_handler(bench: Bench) -> None:
    """The transaction was rolled back, so the rows are written once."""
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    contested = busy if isinstance(bench.place.raw, SqliteRaw) else psycopg.errors.DeadlockDetected()
    order, prepared, make = ordering(bench, contested, contested)
    ledger = make()
    job = bench.run_one(order)
    assert (job.state, job.attempt, prepared, ledger.rows) == ("SUCCEEDED", 1, [1], ["7"])


def test_commit_function_that_exceeds_its_timeout_is_rolled_back_and_retried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored error names `commit_timeout`."""
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


def test_commit_of_a_stale_worker_is_rolled_back_and_recorded(bench: Bench) -> None:
    """The user's writes are rolled back too. The next attempt stores its own, once."""
    order, prepared, make = ordering(bench)
    ledger = make()
    bench.worker.lose_lease(Failpoint.BEFORE_COMMIT)
    job = bench.run_one(order)
    assert (job.state, prepared, ledger.rows) == ("SUCCEEDED", [1, 2], ["7"])
    assert [event for event, _ in bench.remarks(job)] == ["refused"]


def test_crash_in_the_commit_stores_nothing_and_after_it_everything(bench: Bench) -> None:
    """After a crash behind the commit, the handler does not run again."""
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


def test_commit_function_cannot_end_its_transaction(bench: Bench) -> None:
    """Its `tx` offers only `connection` and `execute`. COMMIT fails the job with a clear error."""

    @bench.app.job()
    async def order(run: Run) -> None: ...

    @order.commit
    def record(tx: Any, job: Job, value: None) -> None:
        assert [name for name in dir(tx) if not name.startswith("_")] == ["connection", "execute"]
        tx.execute("COMMIT")

    job = bench.run_one(order)
    assert (job.state, job.attempt) == ("FAILED", 1)
    assert "Interlock ends this transaction" in (job.last_error or "")


def test_job_enqueued_by_a_commit_function_is_part_of_its_transaction(bench: Bench) -> None:
    """It exists if and only if the commit succeeded."""
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
    """A bench whose app opens SQLAlchemy sessions."""
    engine = create_engine(place.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    bench = Bench(place, App(place.url, schema=place.schema, transaction=sessionmaker(engine).begin))
    yield bench
    bench.close()
    engine.dispose()


def test_commit_function_hooks_and_admit_get_the_users_session(session_bench: Bench) -> None:
    """Their writes are stored with the commit or not at all."""
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


def test_commit_function_that_commits_its_session_fails_the_job(session_bench: Bench) -> None:
    """The stored error gives the reason."""
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
    """Declare a kind whose finish raises these errors, one per call; return it with the recorded calls in order."""
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
    """The job is still running until finish returns."""
    order, seen = finishing(bench, is_async=is_async)
    job = bench.run_one(order)
    assert seen == ["prepare", (Order(number=7), "COMMITTED", "running")]
    assert (job.state, job.result) == ("SUCCEEDED", {"number": 7})


def test_finish_never_runs_before_a_commit(bench: Bench) -> None:
    """If the commit function raises, finish does not run."""
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


def test_failed_finish_is_retried_with_backoff_and_costs_no_try(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses are 10 and 20 seconds. The handler does not run again."""
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


def test_finish_that_always_fails_is_given_up_and_recorded(bench: Bench) -> None:
    """The worker gives up after as many failures as the kind has tries. The job has still succeeded."""
    order, seen = finishing(bench, *[ValueError("odd")] * 9, tries=4)
    job = bench.run_one(order)
    assert (job.state, len(seen), bench.statuses(job)) == ("SUCCEEDED", 5, ["DONE"])
    assert (bench.last(job).error or "").endswith("ValueError: odd")
    assert bench.app.history(job.id)[-1].reason == "finish_failed"


def test_after_a_crash_behind_the_commit_only_finish_runs(bench: Bench) -> None:
    """The worker that adopts the execution does not run the handler or the commit again."""
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

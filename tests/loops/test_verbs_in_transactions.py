"""App methods called inside a job's transactions join the transaction or are refused; no worker deadlocks itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from interlock import App, Job, Run, SyncRun, Unavailable
from tests.kit import Place
from tests.loops.handler_bench import STEADY, Bench


@pytest.fixture(params=["our transaction", "a session", "a connection"])
def chained(request: pytest.FixtureRequest, place: Place) -> Iterator[Bench]:
    """A bench whose app uses Interlock's transaction, a SQLAlchemy session, or a database connection."""
    engine = create_engine(place.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    own = {"our transaction": None, "a session": sessionmaker(engine).begin, "a connection": place.raw.transaction}[
        request.param
    ]
    bench = Bench(place, App(place.url, schema=place.schema, transaction=own) if own else None)
    yield bench
    bench.close()
    engine.dispose()


def ordering(bench: Bench, **options: Any) -> tuple[Any, Any]:
    """Declare two kinds: `order`, to which a test adds functions, and `thank`, which follows it."""

    @bench.app.job(backoff=STEADY)
    async def thank(run: Run, number: int) -> None: ...

    @bench.app.job(**{"backoff": STEADY, **options})
    async def order(run: Run) -> int:
        return 7

    return order, thank


def test_commit_function_enqueues_in_its_transaction_without_conn(chained: Bench) -> None:
    """The next job exists if and only if the commit succeeded, and the function can already read it."""
    bench, errors, seen = chained, [ValueError("after the enqueue")], list[Any]()
    order, thank = ordering(bench)

    @order.commit
    def record(tx: Any, job: Job, value: int) -> None:
        stored = thank.enqueue(value)
        bench.app.enqueue_many([thank.request(8)])
        seen.append((bench.app.get(stored.id).payload, len(bench.app.jobs(kind="thank"))))
        if errors:
            raise errors.pop()

    job = bench.run_one(order)
    assert (job.tries_left, bench.app.jobs(kind="thank")) == (2, [])
    bench.again(job, 10)
    assert [each.state for each in bench.app.jobs(kind="thank")] == ["SUCCEEDED", "SUCCEEDED"]
    assert seen == [({"number": 7}, 2)] * 2


def test_hook_enqueues_in_the_transaction_of_its_transition(chained: Bench) -> None:
    """This holds for transitions of a worker and of an operator."""
    bench, errors = chained, [ValueError("after the enqueue")]
    order, thank = ordering(bench)

    def follow(tx: Any, job: Job) -> None:
        thank.using(idempotency_key=job.id).enqueue(1)
        if errors:
            raise errors.pop()

    for state in ("SUCCEEDED", "CANCELLED"):
        order.on_enter(state)(follow)
    id = bench.add(order)
    with pytest.raises(ValueError, match="after the enqueue"):
        bench.app.cancel(id, by="ann")
    assert bench.app.jobs(kind="thank") == []
    bench.app.cancel(id, by="ann")
    assert len(bench.app.jobs(kind="thank")) == 1
    bench.run_one(order)
    assert len(bench.app.jobs(kind="thank")) == 2


def test_method_that_cannot_run_inside_a_commit_fails_its_job(chained: Bench) -> None:
    """The worker does not treat this as an unreachable database, and the next job runs."""
    bench = chained
    order, thank = ordering(bench)

    @order.commit
    def record(tx: Any, job: Job, value: int) -> None:
        bench.app.cancel(job.id, by="ann")

    job = bench.run_one(order)
    assert job.state == "FAILED"
    where, _, sentence = (job.last_error or "").rpartition("\n")
    assert sentence.startswith("interlock.errors.UsageError: app.cancel cannot run inside a transaction of this app")
    assert "in record" in where
    assert bench.run_one(thank, 1).state == "SUCCEEDED"


def test_commit_function_that_cannot_reach_its_database_costs_a_try(bench: Bench) -> None:
    """The worker's own database is reachable, so the error is the function's. Endless retries would occupy the slot."""
    order, thank = ordering(bench, tries=2)

    @order.commit
    def record(tx: Any, job: Job, value: int) -> None:
        raise Unavailable("the other server is unreachable")

    job = bench.run_one(order)
    assert (job.phase, job.tries_left) == ("pending", 1)
    assert "could not use a database: the other server is unreachable" in (job.last_error or "")
    assert bench.again(job, 10).state == "FAILED"
    assert bench.run_one(thank, 1).state == "SUCCEEDED"


def test_commit_function_that_waits_for_a_thread_does_not_stop_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite the thread times out with an explanation. On PostgreSQL it has its own transaction."""
    order, thank = ordering(bench)
    bench.migrate()
    on_sqlite = hasattr(bench.store, "file")
    if on_sqlite:
        monkeypatch.setattr(bench.store.file._write_lock, "_timeout", 0.2)  # type: ignore[attr-defined]

    @order.commit
    def record(tx: Any, job: Job, value: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(thank.enqueue, value).result()

    job = bench.run_one(order)
    if on_sqlite:
        assert job.tries_left == 2
        assert "make this call in that thread" in (job.last_error or "")
    else:
        assert job.state == "SUCCEEDED"
    assert bench.run_one(thank, 1).state == "SUCCEEDED"


def verbs(run: Any) -> dict[str, Any]:
    """Return the methods with which a handler stores something."""
    return {
        "step": lambda: run.step("a", str),
        "effect": lambda: run.effect("a", on_doubt="retry")(str),
        "advance": lambda: run.advance("x"),
    }


@pytest.mark.parametrize("verb", ["step", "effect", "advance"])
@pytest.mark.parametrize("form", ["async", "thread"])
def test_step_inside_a_transaction_of_its_handler_fails_the_job(bench: Bench, verb: str, form: str) -> None:
    """On SQLite the ledger would wait for the lock of its own handler for as long as the job may run."""

    @bench.app.job()
    async def awaited(run: Run) -> None:
        with bench.app.transaction():
            await verbs(run)[verb]()

    @bench.app.job()
    def threaded(run: SyncRun) -> None:
        with bench.app.transaction():
            verbs(run)[verb]()

    job = bench.run_one(awaited if form == "async" else threaded)
    assert job.state == "FAILED"
    _, _, sentence = (job.last_error or "").rpartition("\n")
    assert sentence.startswith(f"interlock.errors.UsageError: run.{verb} cannot run inside a transaction of this app")


def test_handler_enqueues_in_the_transaction_that_it_opens(bench: Bench) -> None:
    """This holds for `aenqueue` too, where the connection belongs to the thread of the event loop."""
    _, thank = ordering(bench)

    @bench.app.job(tries=1)
    async def awaited(run: Run, fails: bool) -> None:
        with bench.app.transaction():
            await thank.aenqueue(1)
            thank.enqueue(2)
            if fails:
                raise ValueError("undone")

    assert bench.run_one(awaited, fails=True).state == "FAILED"
    assert bench.app.jobs(kind="thank") == []
    assert bench.run_one(awaited, fails=False).state == "SUCCEEDED"
    assert len(bench.app.jobs(kind="thank")) == 2

"""Workers behind a real PgBouncer: every transaction may run in another session, and all guarantees still hold."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from interlock import App
from interlock.store.postgres.store import PostgresStore
from tests.contract.kit import FACTS, LIFECYCLES, claim, finish, make, many
from tests.crash.lab import Lab
from tests.crash.pgbouncer import bouncer
from tests.kit import Place, postgres_place

pytestmark = pytest.mark.real


@pytest.fixture
def direct(postgres_url: str) -> Iterator[Place]:
    place = postgres_place(postgres_url)
    yield place
    place.close()


@pytest.fixture
def pooled(direct: Place) -> Iterator[Place]:
    """The same database through PgBouncer in transaction mode; the raw SQL of tests connects directly."""
    with bouncer(direct.url) as url:
        place = replace(direct, url=url, _stores=[])
        yield place
        place.close()


@pytest.fixture
def lab(pooled: Place, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(pooled, tmp_path, lease=2.0)
    yield lab
    lab.close()


# ---------------------------------------------------------------- the store
def test_store_works_through_pgbouncer_in_many_threads(pooled: Place) -> None:
    """The server session changes with each transaction. No prepared statement is missing, and times are in UTC."""
    store = pooled.open(real_time=True)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    store.queue.enqueue(many(300))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while leases := claim(store, limit=5, by=f"w{number}"):
                for lease in leases:
                    assert lease.job.created_at.utcoffset() is not None
                    finish(store, lease)
                with store.transaction() as tx:
                    # Often enough for the driver to prepare the statement by itself.
                    assert tx.execute("SELECT current_setting('TimeZone')").fetchone() == ("UTC",)
        except BaseException as error:  # noqa: BLE001 - checked below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.inspect.counts() == {"standard": {"SUCCEEDED": 300}}
    assert (
        store.inspect.get(store.inspect.jobs(limit=1)[0].id).created_at.utcoffset() == store.inspect.now().utcoffset()
    )
    store.close()


def test_worker_logs_that_it_polls_if_no_notification_arrives(pooled: Place, caplog: pytest.LogCaptureFixture) -> None:
    """In transaction mode LISTEN succeeds, but no notification arrives."""
    store = pooled.open(real_time=True)
    assert isinstance(store, PostgresStore)
    store.registry.migrate(list(LIFECYCLES.values()), FACTS)
    calls = threading.Semaphore(0)
    listening = store.queue.listen(calls.release)
    assert calls.acquire(timeout=20)
    end = threading.Event()
    for _ in range(200):
        if "The worker polls instead" in caplog.text:
            break
        end.wait(0.1)
    assert "The worker polls instead" in caplog.text
    store.queue.enqueue([make()])
    listening.close()
    store.close()


def test_listener_works_with_pgbouncer_in_session_mode(direct: Place) -> None:
    """A new job wakes the listener."""
    with bouncer(direct.url, mode="session") as url:
        place = replace(direct, url=url, _stores=[])
        store = place.open(real_time=True)
        store.registry.migrate(list(LIFECYCLES.values()), FACTS)
        calls = threading.Semaphore(0)
        listening = store.queue.listen(calls.release)
        assert calls.acquire(timeout=20)
        threading.Event().wait(1)
        while calls.acquire(blocking=False):
            pass
        store.queue.enqueue([make()])
        assert calls.acquire(timeout=20)
        listening.close()
        place.close()


# ---------------------------------------------------------------- workers in processes
def test_jobs_with_and_without_commit_end_once(lab: Lab) -> None:
    """The jobs are renewed over several leases, retried, handed over and committed, all through PgBouncer."""
    worker = lab.worker("w1").ready()
    kinds = ("full", "plain", "fast", "moody", "resent", "elsewhere")
    ids = [lab.enqueue(kind, f"{kind}-{n}") for kind in kinds for n in range(5)]
    ids.append(lab.enqueue("full", "long", seconds=5.0))
    ids.append(lab.enqueue("threaded", "thread", seconds=5.0))
    ended = lab.until_ended(*ids, within=60)
    assert {job.phase for job in ended} == {"succeeded"}
    assert len(lab.executions(ids[-2])) == len(lab.executions(ids[-1])) == 1
    assert set(lab.effects().values()) == {1}
    assert "The worker polls instead" in worker.log
    assert lab.app.verify().ok


def test_jobs_of_a_killed_worker_run_again_and_commit_once(lab: Lab) -> None:
    """The worker is killed inside the commit. PgBouncer ends the transaction, and another worker takes over after the
    lease.
    """
    ids = [lab.enqueue("full", f"job-{n}") for n in range(5)]
    victim = lab.worker("victim", "in_commit")
    victim.at("in_commit")
    lab.worker("rescuer").ready()
    victim.kill()
    ended = lab.until_ended(*ids, within=60)
    assert {job.phase for job in ended} == {"succeeded"}
    assert lab.effects() == {f"job-{n}": 1 for n in range(5)}
    assert lab.app.verify().ok


def test_app_works_through_pgbouncer_without_settings(pooled: Place) -> None:
    """Only the URL of PgBouncer is given."""
    app = App(pooled.url, schema=pooled.schema)

    @app.job()
    async def hello(run: object) -> str:
        return "hello"

    app.migrate()
    with app.transaction() as tx:
        job = hello.using(conn=tx).enqueue()
    assert app.get(job.id).state == "PENDING"
    app.close()

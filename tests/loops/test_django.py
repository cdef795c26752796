"""Django in a handler's thread: `around_attempt` replaces a connection that broke when the server restarted."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from interlock import App, Backoff, Job, JobFailed, Kind, SyncRun
from interlock.worker.assembly import run_worker
from tests.contract.stacks import django_connection
from tests.kit import Place

pytestmark = pytest.mark.parametrize("places", ["postgres"], indirect=True)
QUICK = Backoff(first=0.01, cap=0.05)


class Shop:
    """An app whose functions use Django's connection of the thread they run in."""

    def __init__(self, place: Place) -> None:
        from django.db import connections

        self.place = place
        connection = django_connection(place.url)
        self.alias = connection.alias
        # Keep a connection for as long as it works, as in production.
        connections.settings[self.alias]["CONN_MAX_AGE"] = None
        connection.close()
        del connections[self.alias]
        self._made: list[Any] = []

    def pid(self) -> int:
        """Return the id of the server process behind this thread's connection."""
        from django.db import connections

        with connections[self.alias].cursor() as cursor:
            self._made.append(connections[self.alias].connection)
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])

    def close(self) -> None:
        """Close the connections that the threads of ended workers left open."""
        for connection in self._made:
            connection.close()

    @contextmanager
    def transaction(self) -> Generator[Any]:
        from django.db import connections, transaction

        with transaction.atomic(using=self.alias):
            yield connections[self.alias]

    def app(self, *, mends: bool, **chosen: Any) -> App[Any]:
        app: App[Any] = App(self.place.url, schema=self.place.schema, **chosen)
        if mends:
            app.around_attempt(hygiene)
        return app

    def end(self, pid: int) -> None:
        """Make the server terminate this connection, as a restart would."""
        with psycopg.connect(self.place.url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            while connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchall():
                pass


@contextmanager
def hygiene() -> Generator[None]:
    """Do what Django itself does around a request."""
    from django.db import close_old_connections

    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@pytest.fixture
def shop(place: Place) -> Iterator[Shop]:
    shop = Shop(place)
    yield shop
    shop.close()


def run_twice(app: App[Any], kind: Kind[..., int, Any], between: Callable[[int], None]) -> list[Job]:
    """Run two jobs one after the other, in a worker with one handler thread."""

    async def both() -> list[Job]:
        jobs: list[Job] = []
        async with run_worker(app.plan(threads=1)):
            for _ in range(2):
                stored = await kind.aenqueue()
                with suppress(JobFailed):
                    await kind.aresult(stored.id, timeout=30)
                jobs.append(await app.aget(stored.id))
                between(jobs[-1].result)
        return jobs

    app.migrate()
    try:
        return asyncio.run(both())
    finally:
        app.close()


@pytest.mark.parametrize("mends", [True, False])
def test_broken_connection_of_a_handler_thread_is_replaced(shop: Shop, mends: bool) -> None:
    """Without `around_attempt`, no later attempt in that thread succeeds, because Django checks its connections only
    between requests.
    """
    app = shop.app(mends=mends)

    @app.job(tries=4, backoff=QUICK)
    def query(run: SyncRun) -> int:
        return shop.pid()

    ended: list[int] = []

    def end(pid: int) -> None:
        if not ended:
            ended.append(pid)
            shop.end(pid)

    first, second = run_twice(app, query, end)
    assert first.phase == "succeeded"
    assert second.phase == ("succeeded" if mends else "failed")
    assert second.result != first.result


def test_broken_connection_of_a_commit_thread_is_replaced(shop: Shop) -> None:
    """The transaction is Django's own. The commit function runs once per job, and no try is spent."""
    app, pids = shop.app(mends=True, transaction=shop.transaction), list[int]()

    @app.job(tries=1)
    def work(run: SyncRun) -> int:
        return 1

    @work.commit
    def write(tx: Any, job: Job, value: int) -> None:
        pids.append(shop.pid())

    def end(_: int) -> None:
        if len(pids) == 1:
            shop.end(pids[0])

    jobs = run_twice(app, work, end)
    assert [(job.phase, job.attempt) for job in jobs] == [("succeeded", 1)] * 2
    assert len(set(pids)) == 2

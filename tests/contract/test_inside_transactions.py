"""Verbs of the app inside its own transactions: each joins the open transaction or is refused, in the same way on both
stores.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from interlock import App, Enqueued, External, InterlockError, Refused, Run, SyncRun, Unavailable, UsageError
from tests.kit import Place, postgres_place, sqlite_place


class Shop:
    """An app with several kinds, and a second app on the same database that acts as another program."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.app: App[Any] = App(place.url, schema=place.schema, **options)
        self.said: list[str] = []

        @self.app.job()
        def thank(run: SyncRun, order: int = 1) -> None: ...

        @self.app.job()
        def judged(run: SyncRun, order: int = 1) -> None: ...

        @judged.admit
        def admit(tx: Any, job: Enqueued, order: int = 1) -> None:
            thank.enqueue(order)
            if order > 9:
                raise ValueError("too many")

        @self.app.job()
        async def follow(run: Run) -> External[int]:
            return External("x")

        @follow.reconcile()
        async def ask(ids: Any) -> Any:
            return {}

        self.thank, self.judged, self.follow = thank, judged, follow
        self.app.migrate()
        self.other: App[Any] = App(place.url, schema=place.schema)

    def kinds(self) -> list[str]:
        """Return the kinds of the jobs that are visible to other connections."""
        return sorted(job.kind for job in self.other.jobs())

    def close(self) -> None:
        self.app.close()
        self.other.close()


@pytest.fixture
def shop(place: Place) -> Iterator[Shop]:
    shop = Shop(place)
    yield shop
    shop.close()


class Undo(Exception):
    """Raised to roll back a block."""


ENQUEUES: dict[str, Callable[[Shop], Any]] = {
    "enqueue": lambda shop: shop.thank.enqueue(7),
    "using": lambda shop: shop.thank.using(priority=3).enqueue(7),
    "enqueue_many": lambda shop: shop.app.enqueue_many([shop.thank.request(7)]),
    "enqueue_named": lambda shop: shop.app.enqueue_named("thank", {"order": 7}),
    "aenqueue": lambda shop: asyncio.run(shop.thank.aenqueue(7)),
    "aenqueue_many": lambda shop: asyncio.run(shop.app.aenqueue_many([shop.thank.request(7)])),
    "aenqueue_named": lambda shop: asyncio.run(shop.app.aenqueue_named("thank", {"order": 7})),
    "foreign": lambda shop: shop.other.enqueue_named("thank", {"order": 7}),
}


@pytest.mark.parametrize("enqueue", ENQUEUES.values(), ids=ENQUEUES)
def test_job_enqueued_inside_a_transaction_is_stored_exactly_if_it_commits(
    shop: Shop, enqueue: Callable[[Shop], Any]
) -> None:
    """Also without `conn=`: other connections see the job only after the commit, and never after a rollback."""
    with pytest.raises(Undo), shop.app.transaction():
        enqueue(shop)
        raise Undo
    assert shop.kinds() == []
    with shop.app.transaction():
        enqueue(shop)
        seen = contextvars.Context().run(shop.kinds)
    assert (seen, shop.kinds()) == ([], ["thank"])


def test_admit_enqueues_in_the_transaction_of_its_own_job(shop: Shop) -> None:
    """A job that is not admitted stores nothing; a surrounding transaction stays open."""
    with pytest.raises(Refused):
        shop.judged.enqueue(10)
    assert shop.kinds() == []
    shop.judged.enqueue(1)
    assert shop.kinds() == ["judged", "thank"]
    with pytest.raises(Undo), shop.app.transaction():
        shop.judged.enqueue(2)
        with pytest.raises(Refused):
            shop.judged.enqueue(10)
        raise Undo
    assert shop.kinds() == ["judged", "thank"]


def test_reads_inside_a_transaction_see_what_it_wrote(shop: Shop) -> None:
    """The same on both stores."""
    with shop.app.transaction():
        stored = shop.thank.enqueue(7)
        assert shop.app.get(stored.id).payload == {"order": 7}
        assert asyncio.run(shop.app.aget(stored.id)).id == stored.id
        assert [job.id for job in shop.app.jobs()] == [stored.id]
        assert [entry.event for entry in shop.app.history(stored.id)] == ["enqueue"]
        assert shop.app.executions(stored.id) == []
        assert shop.app.explain(stored.id).sentence
        assert shop.app.status().orphaned_kinds == ["thank"]
    assert shop.kinds() == ["thank"]


REFUSED: dict[str, Callable[[Shop, str], Any]] = {
    "app.cancel": lambda shop, job: shop.app.cancel(job, by="ann"),
    "app.reject": lambda shop, job: shop.app.reject(job, by="ann", reason="no"),
    "app.release": lambda shop, job: shop.app.release(job, by="ann", reason="go"),
    "app.redrive": lambda shop, job: shop.app.redrive(job, by="ann"),
    "app.verify": lambda shop, _: shop.app.verify(),
    "app.migrate": lambda shop, _: shop.app.migrate(),
    "app.transaction": lambda shop, _: shop.app.transaction(),
    "app.run_until_idle": lambda shop, _: shop.app.run_until_idle(),
    "thank.result": lambda shop, job: shop.thank.result(job),
    "thank.aresult": lambda shop, job: asyncio.run(shop.thank.aresult(job)),
    "follow.complete": lambda shop, _: shop.follow.complete("x", 1),
    "app.cancel by its twin": lambda shop, job: asyncio.run(shop.app.acancel(job, by="ann")),
    "app.cancel of another app": lambda shop, job: shop.other.cancel(job, by="ann"),
}


@pytest.mark.parametrize(("name", "verb"), REFUSED.items(), ids=REFUSED)
def test_verb_that_needs_its_own_transaction_is_refused_inside_one(
    shop: Shop, name: str, verb: Callable[[Shop, str], Any]
) -> None:
    """The error names the verb and says what to do; the transaction stays open and commits."""
    waiting = shop.thank.enqueue(1)
    with shop.app.transaction():
        with pytest.raises(UsageError) as caught:
            verb(shop, waiting.id)
        shop.thank.enqueue(2)
    assert str(caught.value).startswith(name.partition(" ")[0])
    assert "cannot run inside a transaction of this app" in str(caught.value)
    assert shop.kinds() == ["thank", "thank"]


@pytest.mark.parametrize("schema", ["the same", "another"])
def test_two_apps_on_one_database_share_the_transaction(shop: Shop, place: Place, schema: str) -> None:
    """Otherwise an enqueue of the second app would wait for the lock of the surrounding transaction."""
    second: App[Any] = App(place.url, schema=place.schema if schema == "the same" else f"{place.schema}_2")

    @second.job()
    def later(run: SyncRun) -> None: ...

    second.migrate()
    with pytest.raises(Undo), shop.app.transaction():
        later.enqueue()
        raise Undo
    assert second.jobs() == []
    with shop.app.transaction():
        later.enqueue()
        with pytest.raises(UsageError, match=r"app\.transaction\(\) cannot run inside"):
            second.transaction()
    assert [job.kind for job in second.jobs()] == ["later"]
    second.close()


@pytest.fixture
def ran_elsewhere(place: Place, quick_path: Path) -> Iterator[Shop]:
    """Return a shop in another database of the same type."""
    if place.url.startswith("sqlite"):
        shop = Shop(sqlite_place(quick_path))
    else:
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE elsewhere_{place.schema}")
        shop = Shop(postgres_place(urlunsplit(urlsplit(place.url)._replace(path=f"/elsewhere_{place.schema}"))))
    yield shop
    shop.close()


def test_transaction_does_not_affect_an_app_on_another_database(shop: Shop, ran_elsewhere: Shop) -> None:
    """Its jobs are stored at once, and its verbs run."""
    with pytest.raises(Undo), shop.app.transaction():
        kept = ran_elsewhere.thank.enqueue(1)
        ran_elsewhere.app.cancel(kept.id, by="ann")
        with ran_elsewhere.app.transaction():
            ran_elsewhere.thank.enqueue(2)
            shop.thank.enqueue(3)
        raise Undo
    assert ([job.phase for job in ran_elsewhere.app.jobs()], shop.kinds()) == (["pending", "failed"], [])


def test_task_that_outlives_the_transaction_does_not_use_it(shop: Shop) -> None:
    """The task has the context of a block that has ended."""
    with pytest.raises(Undo), shop.app.transaction():
        context = contextvars.copy_context()
        raise Undo
    context.run(shop.thank.enqueue, 1)
    assert shop.kinds() == ["thank"]


def test_thread_that_inherits_a_transaction_context_is_refused(shop: Shop) -> None:
    """Another thread may not use the connection, so the call is refused at once."""

    async def block() -> None:
        with shop.app.transaction():
            with pytest.raises(UsageError, match="only that one may use it"):
                await asyncio.to_thread(shop.thank.enqueue, 1)
            await shop.thank.aenqueue(2)

    asyncio.run(block())
    assert [job.payload["order"] for job in shop.other.jobs()] == [2]


def test_task_started_inside_a_transaction_is_refused(shop: Shop) -> None:
    """The block might be rolled back after the task was told that its job is stored."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match="rolled back"), shop.app.transaction():
            with pytest.raises(UsageError, match="only that one may use it"):
                await asyncio.create_task(shop.thank.aenqueue(1))
            raise RuntimeError("rolled back")
        await shop.thank.aenqueue(2)

    asyncio.run(main())
    assert [job.payload["order"] for job in shop.other.jobs()] == [2]


def test_thread_started_inside_a_transaction_never_deadlocks(
    shop: Shop, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain thread does not inherit the context of the block.

    On SQLite it would wait for the lock of the thread that waits for it, so its wait is limited.
    """
    store: Any = shop.app.database.store()
    if hasattr(store, "file"):
        monkeypatch.setattr(store.file._write_lock, "_timeout", 0.2)
    said: list[Exception | str] = []

    def work() -> None:
        try:
            said.append(shop.thank.enqueue(1).id)
        except InterlockError as error:
            said.append(error)

    with shop.app.transaction():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(30)
    assert len(said) == 1
    if hasattr(store, "file"):
        assert isinstance(said[0], Unavailable)
        assert "make this call in that thread" in str(said[0])
    shop.thank.enqueue(2)

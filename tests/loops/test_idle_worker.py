"""What an idle worker asks its database, and what one job on an idle worker costs."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import psycopg
import pytest

from interlock import App, Backoff, Kind, Run, SyncRun
from interlock.store import OpenStore
from interlock.store.listener import Listener
from interlock.store.postgres import listening
from interlock.store.postgres.listening import PostgresListener
from interlock.store.types import MaintenanceDue
from interlock.telemetry.events import AttemptEnded, WorkerStateChanged
from interlock.worker import worker as worker_loop
from interlock.worker.assembly import run_worker
from interlock.worker.poll_backoff import SHORTEST
from tests.kit import Place
from tests.loops.test_maintenance import Shop, shop
from tests.loops.worker_doubles import EventRecorder, InterceptedStore

__all__ = ["shop"]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements that this process sends to PostgreSQL from now on."""
    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def counting(cursor: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(query.decode() if isinstance(query, bytes) else str(query))
        return execute(cursor, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Cursor, "execute", counting)
    return sent


# ---------------------------------------------------------------- maintenance
def test_idle_maintenance_sends_at_most_85_statements_a_minute(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL, one question a second, a look at the schedules every 5 s, and pruning once a minute. On SQLite, the
    same calls.
    """
    shop.held(shop.mail)
    shop.mail.using(ttl=3600).enqueue()
    maintenance = shop.maintenance(retention={"succeeded": 3600.0})
    maintenance.run_once()
    asked: list[Sequence[str]] = []
    ask = shop.store.inspect.maintenance_due

    def counting(kinds: Sequence[str]) -> MaintenanceDue:
        asked.append(kinds)
        return ask(kinds)

    monkeypatch.setattr(shop.store.inspect, "maintenance_due", counting)
    sent = counted(monkeypatch)
    for _ in range(60):
        shop.sleeper.at += 1
        maintenance.run_once()
    assert len(asked) == 60
    assert len(sent) <= 85, Counter(sent)


def test_each_query_of_an_idle_worker_is_one_statement(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No BEGIN and no COMMIT."""
    if place.url.startswith("sqlite"):
        pytest.skip("SQLite has no round trips")
    app: App[Any] = App(place.url, schema=place.schema)

    @app.job()
    def mail(run: SyncRun) -> None: ...

    app.migrate()
    store, plan = app.database.store(), app.plan()
    facts: list[Any] = []
    rules = mail.spec.claim_rules(mail.spec.version(store))

    async def facts_of() -> None:
        async with run_worker(plan) as worker:
            facts.append(worker.facts())

    asyncio.run(facts_of())
    questions: list[Callable[[], object]] = [
        lambda: store.inspect.maintenance_due(["mail"]),
        lambda: store.queue.due_in(rules, ["default"]),
        lambda: store.workers.report(facts[0]),
    ]
    for ask in questions:
        ask()
    sent = counted(monkeypatch)
    for ask in questions:
        ask()
    app.close()
    assert len(sent) == len(questions), sent


# ---------------------------------------------------------------- one job
def test_one_job_on_an_idle_worker_costs_one_claim_one_due_query_and_one_report(place: Place) -> None:
    """A notification announced the job: the worker claims without a query before, and its next pause is the longest."""
    if place.url.startswith("sqlite"):
        pytest.skip("a listener on SQLite also notices the worker's own writes")
    app: App[Any] = App(place.url, schema=place.schema)

    @app.job()
    def mail(run: SyncRun) -> int:
        return 1

    app.migrate()
    intercepted, calls, guard = InterceptedStore(app.database.store()), list[str](), threading.Lock()

    def note(name: str) -> Callable[[], None]:
        def noted() -> None:
            with guard:
                calls.append(name)

        return noted

    for name in ("claim", "due_in", "move", "commit"):
        intercepted.before[name] = note(name)

    async def scene() -> None:
        plan = replace(app.plan(), find_store=lambda: cast(OpenStore, intercepted))
        async with asyncio.timeout(60), run_worker(plan):
            witness = EventRecorder(app.events)
            known = await until_announced(witness, mail)
            calls.clear()
            await mail.aenqueue()
            await witness.until(AttemptEnded, after=known)
            idle = await witness.until(WorkerStateChanged, lambda moved: moved.target == "Idle", after=known)
            assert idles_for(idle) > 3.0

    asyncio.run(scene())
    app.close()
    assert sorted(calls) == ["claim", "due_in", "move"], calls


def test_jobs_announced_one_after_the_other_cost_no_due_query_between_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits a moment for the next announcement before it asks when the next job is due."""
    if place.url.startswith("sqlite"):
        pytest.skip("a listener on SQLite also notices the worker's own writes")
    app: App[Any] = App(place.url, schema=place.schema)

    @app.job()
    def mail(run: SyncRun) -> int:
        return 1

    app.migrate()
    intercepted, calls = InterceptedStore(app.database.store()), list[str]()
    for name in ("claim", "due_in"):
        intercepted.before[name] = partial(calls.append, name)

    async def scene() -> None:
        plan = replace(app.plan(), find_store=lambda: cast(OpenStore, intercepted))
        async with asyncio.timeout(60), run_worker(plan):
            witness = EventRecorder(app.events)
            await until_announced(witness, mail)
            # A moment that outlasts the test: the worker is still waiting when the next job is announced.
            monkeypatch.setattr(worker_loop, "ANNOUNCEMENT_WAIT", 600.0)
            calls.clear()
            for _ in range(3):
                known = len(witness.seen)
                await mail.aenqueue()
                await witness.until(AttemptEnded, after=known)

    asyncio.run(scene())
    app.close()
    assert calls == ["claim"] * 3


def test_worker_that_pauses_for_long_runs_a_retry_when_it_is_due(place: Place) -> None:
    """The pause after a notification is the longest, and the retry shortens it."""
    if place.url.startswith("sqlite"):
        pytest.skip("a listener on SQLite also notices the worker's own writes")
    app: App[Any] = App(place.url, schema=place.schema)
    pausing = asyncio.Event()

    @app.job(backoff=Backoff(first=0.1, jitter=False))
    async def mail(run: Run, fail: bool = False) -> None:
        if fail and run.attempt == 1:
            await pausing.wait()
            raise ConnectionError("try again")

    app.migrate()

    async def scene() -> list[float]:
        async with asyncio.timeout(60), run_worker(app.plan()):
            witness = EventRecorder(app.events)
            known = await until_announced(witness, mail)
            await mail.aenqueue(fail=True)
            await witness.until(WorkerStateChanged, lambda moved: idles_for(moved) > 3.0, after=known)
            failed = len(witness.seen)
            pausing.set()
            await witness.until(AttemptEnded, lambda ended: ended.attempt == 2, after=failed)
            return [idles_for(event) for event in witness.seen[failed:] if isinstance(event, WorkerStateChanged)]

    pauses = [pause for pause in asyncio.run(scene()) if pause]
    app.close()
    assert pauses, "the worker slept through the retry"
    assert pauses[0] <= 0.1


def test_worker_without_notifications_polls_again_soon_after_a_backlog(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler forwards none. The listener opens while the worker drains the queue, which announces no job."""
    if place.url.startswith("sqlite"):
        pytest.skip("SQLite has no poolers")
    app: App[Any] = App(place.url, schema=place.schema)
    open_ = asyncio.Event()

    @app.job()
    async def mail(run: Run) -> None:
        await open_.wait()

    app.migrate()
    jobs = {job.id for job in app.enqueue_many([mail.request() for _ in range(5)])}
    monkeypatch.setattr(listening, "is_pooled", lambda _: True)
    monkeypatch.setattr(PostgresListener, "_receives_notifications", lambda *_: False)

    async def scene() -> float:
        loop, call = asyncio.get_running_loop(), Listener._call

        def called(listener: Listener, **how: bool) -> None:
            call(listener, **how)
            loop.call_soon_threadsafe(open_.set)

        monkeypatch.setattr(Listener, "_call", called)
        async with asyncio.timeout(60), run_worker(replace(app.plan(), slots=1)):
            witness, ended = EventRecorder(app.events), set[str]()
            while ended < jobs:
                ended.add((await witness.until(AttemptEnded, lambda one: one.job_id not in ended)).job_id)
            return idles_for(await witness.until(WorkerStateChanged, lambda moved: idles_for(moved) > 0))

    pause = asyncio.run(scene())
    app.close()
    assert pause <= 2 * SHORTEST


async def until_announced(witness: EventRecorder, kind: Kind[..., Any, Any]) -> int:
    """Enqueue jobs until notifications announce them. Returns the number of events so far.

    The worker finds the first jobs by polling, and wakes up once more when its listener is open.
    """
    known, announced = 0, 0
    while announced < 3:
        await kind.aenqueue()
        await witness.until(AttemptEnded, after=known)
        idle = await witness.until(WorkerStateChanged, lambda moved: moved.target == "Idle", after=known)
        known = len(witness.seen)
        announced += idles_for(idle) > 3.0
    return known


def idles_for(moved: WorkerStateChanged) -> float:
    """Return the seconds that the worker idles at most; 0 if it does something else."""
    return float(moved.why.split()[1]) if moved.target == "Idle" else 0.0

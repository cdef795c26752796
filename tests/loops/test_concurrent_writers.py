"""Concurrent writers never fail a job, and users' transactions cost no attempt."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from interlock import App, Run
from interlock.core.transition import Move
from interlock.store.postgres.pool import SIZE
from interlock.store.types import Refusal
from interlock.telemetry.events import MoveRefused, Renewed
from interlock.worker.assembly import run_worker
from tests.kit import Place
from tests.loops.handler_bench import Bench
from tests.loops.worker_doubles import EventRecorder


def test_report_that_collides_with_another_writer_does_not_fail_its_job(bench: Bench) -> None:
    """Only data that cannot be stored fails a job. This job keeps its tries and is recovered when its lease expires."""

    @bench.app.job(tries=5)
    async def work(run: Run) -> int:
        return 1

    bench.migrate()
    store: Any = bench.store
    carry_out = store.transitions.move

    def collide(moves: Sequence[Move]) -> list[Refusal]:
        store.transitions.move = carry_out
        (move,) = moves
        fence = move.job_id, move.attempt, move.holder
        return [Refusal(*fence, move.from_status, None, move.source, error="duplicate key", collided=True)]

    store.transitions.move = collide
    job = bench.run_one(work)
    assert (job.state, job.phase, job.tries_left) == ("RUNNING", "running", 5)
    assert [event for event, _ in bench.remarks(job)] == ["refused"]
    assert len(bench.heard(MoveRefused)) == 1


def test_users_inside_transactions_do_not_starve_renewal(place: Place) -> None:
    """A healthy handler runs once while as many threads as the store has connections are inside `app.transaction()`."""
    app: App[Any] = App(place.url, schema=place.schema)
    begun, go, over = asyncio.Event(), asyncio.Event(), threading.Event()

    @app.job(lease=1.5)
    async def work(run: Run) -> str:
        begun.set()
        await go.wait()
        return "once"

    app.migrate()
    # SQLite has one writer at a time, so the users take turns; together they take longer than a lease.
    turn = 0.1 if place.url.startswith("sqlite") else None

    def use() -> None:
        while not over.is_set():
            with app.transaction() as tx:
                tx.execute("SELECT 1")
                over.wait(turn)

    async def scene() -> str:
        async with run_worker(app.plan()):
            witness = EventRecorder(app.events)
            job = await work.aenqueue()
            await asyncio.wait_for(begun.wait(), 30)
            users = [threading.Thread(target=use) for _ in range(SIZE)]
            for user in users:
                user.start()
            try:
                for _ in range(8):
                    await witness.until(Renewed, after=len(witness.seen))
            finally:
                over.set()
            go.set()
            await work.aresult(job.id, timeout=30)
            return job.id

    id = asyncio.run(scene())
    assert [execution.status for execution in app.executions(id)] == ["DONE"]
    app.close()
